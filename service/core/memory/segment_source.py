"""Where the segments of sealed rows come from: from disk (`segment_store`), or from a device."""

from __future__ import annotations

from collections.abc import Collection
from itertools import count
from typing import Protocol

from service.core.errors import DeviceUnavailable, SealError
from service.core.index.device_segment import DeviceSegment
from service.core.index.devices import ScanDevice
from service.core.index.libraries import IndexParameters
from service.core.index.protocol import Segment
from service.core.types import Halves


class SegmentSource(Protocol):
    """Builds segments over vectors [n, d], each under a key; the sealer's thread calls it."""

    def key(self, vectors: Halves, parameters: IndexParameters) -> str:
        """Return the key of the segment over these vectors."""
        ...

    def find(
        self, key: str, parameters: IndexParameters, *, shape: tuple[int, int]
    ) -> Segment | None:
        """Open a built segment over vectors of `shape`; None if it was not built yet."""
        ...

    def build(self, key: str, vectors: Halves, parameters: IndexParameters) -> None:
        """Build a segment; raises `SealError` where that fails."""
        ...

    def interrupt(self) -> None:
        """End a build that is running, and refuse to start another; called from any thread."""
        ...

    def discard(self, key: str) -> None:
        """Forget a segment that a larger one has replaced; who has it open keeps it."""
        ...

    def prune(self, keep: Collection[str], *, older_than: float) -> None:
        """Delete what nobody here needs and is older than `older_than` seconds."""
        ...


class DeviceSegments:
    """Segments on a device, scanned exactly: nothing is built but copied, nothing lies on disk.

    Sealing is still of use there: merging keeps the number of matrices small and leaves tombstones
    out. A restart copies the vectors again.
    """

    def __init__(self, device: ScanDevice) -> None:
        """Copy to `device`."""
        self._device = device
        self._numbers = count()
        self._built: dict[str, Segment] = {}  # not yet opened

    def key(self, vectors: Halves, parameters: IndexParameters) -> str:
        """Return a new key: no segment is found again by its content."""
        return f"device-{next(self._numbers)}"

    def find(
        self, key: str, parameters: IndexParameters, *, shape: tuple[int, int]
    ) -> Segment | None:
        """Hand over a segment that was built, once: the device frees it with its last user."""
        return self._built.pop(key, None)

    def build(self, key: str, vectors: Halves, parameters: IndexParameters) -> None:
        """Copy the vectors to the device; the parameters are a graph's and play no part.

        Raises `SealError` where its memory is full: the rows then stay live.
        """
        try:
            self._built[key] = DeviceSegment(self._device, vectors)
        except DeviceUnavailable as error:
            raise SealError(str(error)) from error

    def interrupt(self) -> None:
        """A copy takes milliseconds: it is let finish."""

    def discard(self, key: str) -> None:
        """Forget a segment that was never opened."""
        self._built.pop(key, None)

    def prune(self, keep: Collection[str], *, older_than: float) -> None:
        """Nothing lies on disk."""

"""A share of the cores' processor time, kept by a bucket that time fills and work empties."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

BURST_SECONDS = 1.0  # the bucket holds what flows in during so long


class ProcessorShare:
    """Says whether a kind of work still has processor time; any thread may ask and spend.

    Work may begin while the bucket is not empty and is charged afterwards, so the bucket may hold
    less than nothing for a while: over a long time, the work takes its share and one burst.
    """

    def __init__(self, share: float, *, cores: int, clock: Callable[[], float] = monotonic) -> None:
        """`share` of `cores` cores; `clock` counts seconds. The bucket is full at first."""
        self._per_second = share * cores
        self._clock = clock
        self._level, self._filled = self._per_second * BURST_SECONDS, clock()

    @property
    def left(self) -> bool:
        """Whether more work may begin."""
        return self._refilled() > 0

    def spend(self, seconds: float) -> None:
        """Take processor seconds that were used."""
        self._level = self._refilled() - seconds

    def _refilled(self) -> float:
        now = self._clock()
        flown_in = (now - self._filled) * self._per_second
        self._level, self._filled = (
            min(self._level + flown_in, self._per_second * BURST_SECONDS),
            now,
        )
        return self._level

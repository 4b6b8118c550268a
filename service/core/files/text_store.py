"""A text store: many short texts in memory-mapped files, read by position or found by content.

| file               | content                                                     |
|--------------------|-------------------------------------------------------------|
| `NAME.bin`         | the texts in UTF-8, concatenated without separators         |
| `NAME.offsets.npy` | int64 [n + 1]; text i is bytes offsets[i] to offsets[i + 1] |
| `NAME.order.npy`   | int32 [n], only if written with `lookup`: positions of the  |
|                    | texts in ascending order of their UTF-8 bytes               |

The bundle's manifest has the format version and the files' checksums.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from service.core.errors import BundleAltered
from service.core.types import Indices, Rows


class TextStore:
    """An immutable sequence of texts on disk."""

    def __init__(self, path: Path) -> None:
        """Map the files that `write` wrote for `path`; raises `BundleAltered` if they disagree."""
        # One offset of a memoryview is read in a third of the time of an array's element.
        self._offsets = mapped(path.with_name(f"{path.name}.offsets.npy"), np.int64).data
        binary = path.with_name(f"{path.name}.bin")
        size = binary.stat().st_size
        if len(self._offsets) == 0 or self._offsets[-1] != size:
            raise BundleAltered(f"{binary} has {size} bytes, which its offsets contradict")
        # An empty file cannot be mapped.
        self._bytes = np.memmap(binary, np.uint8, "r").data if size else memoryview(b"")
        order = path.with_name(f"{path.name}.order.npy")
        self._order = mapped(order, np.int32) if order.exists() else None

    def __len__(self) -> int:
        """Return the number of texts."""
        return len(self._offsets) - 1

    def __getitem__(self, position: int) -> str:
        """Return the text at `position`, counted from 0."""
        return str(self._bytes[self._offsets[position] : self._offsets[position + 1]], "utf-8")

    def __iter__(self) -> Iterator[str]:
        """Iterate over all texts in order."""
        return (self[position] for position in range(len(self)))

    def filled(self) -> Rows:
        """The positions of the texts that are not empty, ascending."""
        return np.flatnonzero(np.diff(np.asarray(self._offsets)))

    def find(self, text: str) -> int | None:
        """Return the position of `text` by binary search, None if the store does not have it.

        Raises `TypeError` for a store that was written without `lookup`.
        """
        order, wanted = self.order, text.encode()
        place = self._first_place(wanted)
        if place == len(self):
            return None
        position = int(order[place])
        return position if self._raw(position) == wanted else None

    def place_above(self, text: str) -> int:
        """Return the place in `order` of the first text that is greater than `text`.

        Raises `TypeError` as `find` does.
        """
        return self._first_place(text.encode() + b"\0")  # no text lies between

    @property
    def order(self) -> Indices:
        """The positions of the texts [n] in ascending order; raises `TypeError` as `find` does."""
        if self._order is None:
            raise TypeError("this store was written without lookup")
        return self._order

    def _first_place(self, wanted: bytes) -> int:
        """The place in the order of the first text that is not below `wanted`."""
        order = self.order
        low, high = 0, len(self)
        while low < high:
            middle = (low + high) // 2
            if self._raw(int(order[middle])) < wanted:
                low = middle + 1
            else:
                high = middle
        return low

    def _raw(self, position: int) -> bytes:
        return bytes(self._bytes[self._offsets[position] : self._offsets[position + 1]])


def mapped(path: Path, kind: type[np.integer[Any]] | None = None) -> NDArray[Any]:
    """Return a memory-mapped `.npy` file as a plain array; indexing an `np.memmap` is slow.

    Raises `BundleAltered` where the file holds no array or, if `kind` is given, no row of these.
    """
    try:
        array = np.asarray(np.load(path, mmap_mode="r"))
    except OSError:
        raise
    except Exception as error:  # numpy's parser lets errors of Python's own tokenizer through
        raise BundleAltered(f"{path} holds no array: {error}") from error
    if kind is not None and (array.dtype != kind or array.ndim != 1):
        raise BundleAltered(
            f"{path} holds {array.dtype} {list(array.shape)}, not a row of {np.dtype(kind)}"
        )
    return array


def write(path: Path, texts: Sequence[str], *, lookup: bool = False) -> None:
    """Write the files of `texts`, named after `path`; `lookup` enables `TextStore.find`."""
    encoded = [text.encode() for text in texts]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_name(f"{path.name}.bin").write_bytes(b"".join(encoded))
    offsets = np.zeros(len(encoded) + 1, np.int64)
    np.cumsum([len(text) for text in encoded], out=offsets[1:])
    np.save(path.with_name(f"{path.name}.offsets.npy"), offsets)
    if lookup:
        order = np.array(sorted(range(len(encoded)), key=encoded.__getitem__), np.int32)
        np.save(path.with_name(f"{path.name}.order.npy"), order)

"""A text store: many short texts in memory-mapped files, read by position or found by content.

| file               | content                                                     |
|--------------------|-------------------------------------------------------------|
| `NAME.bin`         | the texts in UTF-8, concatenated without separators         |
| `NAME.offsets.npy` | int64 [n + 1]; text i is bytes offsets[i] to offsets[i + 1] |
| `NAME.order.npy`   | int32 [n], only if written with `lookup`: positions of the  |
|                    | texts in ascending order of their UTF-8 bytes               |

The bundle's manifest records the format version and the files' checksums.
"""

from __future__ import annotations

import codecs
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np

from service.core.errors import BundleAltered
from service.core.files.arrays import mapped, require_offsets, require_within
from service.core.types import Bools, Indices, Rows

_BLOCK = 1 << 20  # bytes decoded at once
_LOOKED_AT = 1_024  # positions in order that `above` looks at together


class TextStore:
    """An immutable sequence of texts on disk."""

    def __init__(self, path: Path, *, lookup: bool = False, count: int | None = None) -> None:
        """Map the files that `write` wrote, and the order with `lookup`.

        Raises `BundleAltered`, also if the number of texts is not `count`.
        """
        self._files = [path.parent / name for name in files(path.name, lookup=lookup)]
        binary, offsets, *order = self._files
        # Reading an offset from a memoryview takes a third of the time of an array's element.
        self._offsets = mapped(offsets, np.int64).data
        size = binary.stat().st_size
        if len(self._offsets) == 0 or self._offsets[-1] != size:
            raise BundleAltered(f"{binary} has {size} bytes, which its offsets contradict")
        if count is not None and len(self) != count:
            raise BundleAltered(f"{path} holds {len(self)} texts, expected {count}")
        # An empty file cannot be mapped.
        self._bytes = np.memmap(binary, np.uint8, "r").data if size else memoryview(b"")
        self._order = mapped(order[0], np.int32, (len(self),)) if order else None

    def __len__(self) -> int:
        """Return the number of texts."""
        return len(self._offsets) - 1

    def __getitem__(self, position: int) -> str:
        """Return the text at `position`, counted from 0."""
        return str(self._bytes[self._offsets[position] : self._offsets[position + 1]], "utf-8")

    def __iter__(self) -> Iterator[str]:
        """Iterate over all texts in order."""
        return (self[position] for position in range(len(self)))

    def verify(self) -> None:
        """Raise `BundleAltered` unless texts are UTF-8 and the order holds valid positions."""
        binary, offsets = self._files[:2]
        ends, content = np.asarray(self._offsets), np.asarray(self._bytes)
        require_offsets(offsets, ends, end=len(content))
        decoder = codecs.getincrementaldecoder("utf-8")()
        try:
            for start in range(0, len(content), _BLOCK):
                decoder.decode(self._bytes[start : start + _BLOCK])
            decoder.decode(b"", final=True)
        except UnicodeDecodeError as error:
            raise BundleAltered(f"{binary} is not UTF-8: {error.reason}") from error
        starts = ends[ends < len(content)]
        if ((content[starts] & 0xC0) == 0x80).any():  # a byte within a character
            raise BundleAltered(f"{offsets} begins a text within a character")
        if self._order is not None:
            require_within(self._files[2], self._order, 0, len(self))

    def verify_order(self) -> None:
        """Raise `BundleAltered` unless `order` sorts the texts; reads every text."""
        before: bytes | None = None
        for position in self.order.tolist():
            text = self._raw(position)
            if before is not None and text <= before:
                raise BundleAltered(
                    f"{self._files[2]} is not the order of the texts, or two are equal"
                )
            before = text

    def filled(self) -> Rows:
        """Return the positions of the texts that are not empty, ascending."""
        return np.flatnonzero(np.diff(np.asarray(self._offsets)))

    def find(self, text: str) -> int | None:
        """Return the position of `text`, or None; raises `TypeError` if the store has no order."""
        wanted = text.encode()
        place = self._first_place(wanted)
        if place == len(self) or self._raw(position := int(self.order[place])) != wanted:
            return None
        return position

    def contains(self, part: str) -> bool:
        """Return whether `part` is in any text; it may also be found across two texts."""
        return re.search(re.escape(part.encode()), self._bytes) is not None

    def equal_to(self, text: str, among: Rows) -> Rows:
        """Return the positions of this text among some positions [m].

        Only texts of its length are read.
        """
        wanted, offsets = text.encode(), np.asarray(self._offsets)
        alike = among[offsets[among + 1] - offsets[among] == len(wanted)]
        found = [place for place in alike.tolist() if self._raw(place) == wanted]
        return np.array(found, np.int64)

    def place_above(self, text: str) -> int:
        """Return the place in `order` of the first text greater than `text`; raises as `find`."""
        return self._first_place(text.encode() + b"\0")  # the next text in byte order

    def above(self, text: str, keeps: Callable[[Indices], Bools]) -> Iterator[tuple[str, int]]:
        """Yield the texts greater than `text`, ascending, with their positions; raises as `find`.

        `keeps` returns which of some positions are wanted.
        """
        positions = self.order[self.place_above(text) :]
        for first in range(0, len(positions), _LOOKED_AT):
            some = positions[first : first + _LOOKED_AT]
            for position in some[keeps(some)].tolist():
                yield self[position], position

    @property
    def order(self) -> Indices:
        """The positions of the texts [n] in ascending order; raises `TypeError` without order."""
        if self._order is None:
            raise TypeError("this store was written without lookup")
        return self._order

    def _first_place(self, wanted: bytes) -> int:
        """Return the place in `order` of the first text that is not less than `wanted`."""
        return bisect_left(self.order, wanted, key=self._raw)

    def _raw(self, position: int) -> bytes:
        return bytes(self._bytes[self._offsets[position] : self._offsets[position + 1]])


def files(name: str, *, lookup: bool = False) -> list[str]:
    """Return the names of a store's files; the first are `NAME.bin` and `NAME.offsets.npy`."""
    return [f"{name}.bin", f"{name}.offsets.npy", *([f"{name}.order.npy"] if lookup else [])]


def write(path: Path, texts: Iterable[str], *, lookup: bool = False) -> None:
    """Write `texts` to files named after `path`. `lookup` makes `TextStore.find` possible."""
    encoded = [text.encode() for text in texts]
    path.parent.mkdir(parents=True, exist_ok=True)
    binary, offsets, order = (path.parent / name for name in files(path.name, lookup=True))
    binary.write_bytes(b"".join(encoded))
    np.save(offsets, np.cumsum([0, *map(len, encoded)], dtype=np.int64))
    if lookup:
        np.save(order, np.array(sorted(range(len(encoded)), key=encoded.__getitem__), np.int32))

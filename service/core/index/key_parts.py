"""Keys in parts: the rows of each part, and a segment for each that is searched for its rows.

Rows are divided by a hash of their keys' bits. So a row stays in its part however many are added,
each row is in one part, and the rows of one key are in the same one.

A process may hold some of the parts. It finds their rows only, under the numbers that they have
among all rows.

Shapes: B queries, b found rows, R rows of all parts, n rows of one, d dimensions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from threading import Lock
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from service.core.index.equal_keys import key_hashes
from service.core.index.found_rows import nearest, nothing_found, pad
from service.core.index.protocol import Keys, RowFilter, Segment
from service.core.types import Bools, Floats, Halves, Rows

_HIGH_BITS = np.uint64(32)  # of a hash; its low bits depend on few bits of the key


@dataclass(frozen=True, kw_only=True)
class KeyShare:
    """The share of all keys that part `index` of `count` holds."""

    index: int
    count: int

    def holds(self, keys: Keys) -> Bools:
        """Return which of `keys` [R, d] belong to this part."""
        return np.asarray(parts_of(keys, self.count) == self.index)


@dataclass(frozen=True, kw_only=True, eq=False)
class KeyPart:
    """The rows [n] of one part, ascending, with their keys [n, d] and the segment over them."""

    rows: Rows
    keys: Halves
    segment: Segment


class PartedKeys:
    """The keys [R, d] of rows in parts, read like an array; implements `Keys`.

    Only rows of the parts that are held can be read.
    """

    def __init__(self, parts: Sequence[KeyPart], *, rows: int, dimension: int) -> None:
        """Read from `parts`, which hold some of the `rows` R."""
        self._parts, self.shape = parts, (rows, dimension)

    def __len__(self) -> int:
        """Return the number R of rows, in whatever part."""
        return self.shape[0]

    def __getitem__(self, rows: slice | Rows) -> Halves:
        """Return a copy of the keys [n, d] of `rows`; raises `IndexError` for one not held."""
        if isinstance(rows, slice):
            rows = np.arange(*rows.indices(len(self)))
        parts = ((part.rows, part.keys.__getitem__) for part in self._parts)
        return _gathered(parts, rows, dimension=self.shape[1])


class PartedSegment:
    """A search over segments that each hold some of R rows; implements `Segment`."""

    def __init__(self, parts: Sequence[tuple[Rows, Segment]], *, rows: int, dimension: int) -> None:
        """Search `parts`: the rows [n] of each, ascending, and the segment that holds them."""
        self._parts = [part for part in parts if len(part[0])]
        self.rows, self._dimension = rows, dimension
        self._filters: WeakKeyDictionary[RowFilter, Sequence[RowFilter | None]]
        self._filters = WeakKeyDictionary()  # views keep theirs
        self._lock = Lock()

    def search(
        self,
        queries: Floats,
        *,
        count: int,
        ef: int,
        row_filter: RowFilter | None,
        share: int | None = None,
    ) -> tuple[Floats, Rows]:
        """Find the nearest rows of the parts that are held, as `Segment.search` describes.

        Each of several parts is walked with a part of the queue.
        """
        searched = [
            (*part, own_filter)
            for part, own_filter in zip(self._parts, self._of_parts(row_filter), strict=True)
            if own_filter is None or own_filter.selected()
        ]
        queue = queue_for_part(ef, 1 / max(1, len(searched)))
        similarities, rows = nothing_found(len(queries))
        for own, segment, own_filter in searched:
            found, places = segment.search(
                queries, count=count, ef=queue, row_filter=own_filter, share=share
            )
            similarities = np.hstack([similarities, found])
            rows = np.hstack([rows, np.where(places < 0, places, own.take(places, mode="clip"))])
        if rows.shape[1] > count:
            similarities, rows = nearest(similarities, rows, count=count)
        return pad(similarities, rows, count=count)

    def vectors(self, rows: Rows) -> Halves:
        """Return the vectors [n, d] of `rows` [n], as `Segment.vectors` does.

        Raises `IndexError` for a row that is not held.
        """
        parts = ((own, segment.vectors) for own, segment in self._parts)
        return _gathered(parts, rows, dimension=self._dimension)

    def _of_parts(self, row_filter: RowFilter | None) -> Sequence[RowFilter | None]:
        """Return the filter over each part's places. Segments cache what they derive from it."""
        if row_filter is None:
            return [None] * len(self._parts)
        with self._lock:
            known = self._filters.get(row_filter)
        if known is None:
            known = [row_filter.of_rows(own) for own, _ in self._parts]
            with self._lock:
                known = self._filters.setdefault(row_filter, known)
        return known


def _gathered(
    parts: Iterable[tuple[Rows, Callable[[Rows], Halves]]], rows: Rows, *, dimension: int
) -> Halves:
    """Return the keys [n, d] of `rows` [n]; raises `IndexError` for one that no part has.

    A part has its own rows, ascending, and returns the keys at places among them.
    """
    keys, missing = np.empty((len(rows), dimension), np.float16), len(rows)
    for own, keys_at in parts:
        here = _held(own, rows)
        if len(here):
            keys[here] = keys_at(np.searchsorted(own, rows[here]))
            missing -= len(here)
    if missing:
        raise IndexError(f"{missing} of {len(rows)} rows are in parts that are not held")
    return keys


def _held(own: Rows, rows: Rows) -> Rows:
    """Return the places of those `rows` that are among a part's `own`, ascending."""
    if not len(own):
        return np.zeros(0, np.int64)
    places = np.searchsorted(own, rows)
    return np.flatnonzero(own.take(places, mode="clip") == rows)


def queue_for_part(ef: int, share: float) -> int:
    """Return the length of a graph's queue if only a `share` of the depth is wanted of it.

    Measured with 3 and 8 parts: the merged rows then have at least the recall of one graph.
    """
    return math.ceil(ef * math.sqrt(share))


def parts_of(keys: Keys, count: int) -> NDArray[np.uint64]:
    """Return to which of `count` parts each of `keys` [R, d] belongs."""
    return np.asarray((key_hashes(keys) >> _HIGH_BITS) % np.uint64(count))

"""The interface of a frozen segment, and the filters on its rows.

A bitmap over rows or items is little-endian. A set bit means that the row or item at this place is
alive. None instead of a bitmap means that all are alive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from service.core.types import Bits, Bools, Floats, Halves, Rows

Progress = Callable[[int], None]  # called with the number of finished rows, or of other items


def shifted(progress: Progress, start: int) -> Progress:
    """Return the progress of work that begins after `start` items are finished."""
    return lambda done: progress(start + done)


@dataclass(frozen=True, kw_only=True, slots=True, weakref_slot=True, eq=False)
class RowFilter:
    """The rows that a search may return: those in [start, stop) whose bit in `alive` is set.

    `alive` is a bitmap over all rows of the segment. Filters are compared by identity. So if a view
    keeps its filters, segments can cache what they derive from them.
    """

    start: int
    stop: int
    alive: Bits | None = None

    def selected(self) -> int:
        """Return about how many rows pass: the bitmap is counted in whole bytes."""
        if self.alive is None:
            return self.stop - self.start
        return int(np.bitwise_count(self.alive[self.start // 8 : -(-self.stop // 8)]).sum())

    def allows(self, rows: Rows) -> Bools:
        """Return which of `rows`, an array of any shape, pass; row -1 never does."""
        inside = (rows >= self.start) & (rows < self.stop)
        if self.alive is None:
            return np.asarray(inside)
        bits = self.alive[np.maximum(rows, 0) >> 3] >> (rows & 7).astype(np.uint8)
        return np.asarray(inside & (bits & 1).astype(bool))

    def mask(self) -> Bools:
        """Return the filter as booleans over [start, stop)."""
        if self.alive is None:
            return np.ones(self.stop - self.start, bool)
        return np.unpackbits(self.alive, bitorder="little")[self.start : self.stop].astype(bool)

    def of_rows(self, rows: Rows) -> RowFilter | None:
        """Return the filter for a segment that holds `rows` [n], ascending; None if all pass."""
        start, stop = np.searchsorted(rows, (self.start, self.stop)).tolist()
        alive = None
        if self.alive is not None:
            bits = np.unpackbits(self.alive, bitorder="little")[rows]
            alive = None if bits[start:stop].all() else np.packbits(bits, bitorder="little")
        if alive is None and stop - start == len(rows):
            return None
        return RowFilter(start=start, stop=stop, alive=alive)


class Keys(Protocol):
    """Unit vectors [R, d] in fp16, read like an array."""

    @property
    def shape(self) -> tuple[int, ...]:
        """R and d."""
        ...

    def __len__(self) -> int:
        """Return the number R of vectors."""
        ...

    def __getitem__(self, rows: slice | Rows, /) -> Halves:
        """Return the vectors [n, d] of `rows`."""
        ...


class Segment(Protocol):
    """A frozen set of unit vectors, searched by inner product."""

    @property
    def rows(self) -> int:
        """The number of rows in the segment."""
        ...

    def search(
        self,
        queries: Floats,
        *,
        count: int,
        ef: int,
        row_filter: RowFilter | None,
        share: int | None = None,
    ) -> tuple[Floats, Rows]:
        """Find the `count` nearest rows of each query [B, d], at most `share` rows of one key.

        `ef` is the length of the graph's queue. Returns inner products [B, count], descending, and
        rows [B, count]; row -1 fills missing places.
        """
        ...

    def vectors(self, rows: Rows) -> Halves:
        """Return the vectors [n, d] of `rows` [n], with exactly the bits that were indexed."""
        ...


class Graph(Protocol):
    """An index library's graph over distinct unit vectors; row numbers name its nodes."""

    def walk(self, queries: Floats, *, count: int, queue: int) -> tuple[Floats, Rows]:
        """Find about the `count` nearest nodes of queries [B, d] with a queue of length `queue`.

        Returns inner products [B, count], descending, and nodes; -1 fills missing places.
        """
        ...

    def subset(self, nodes: Rows, *, copied: bool) -> Subset:
        """Return `nodes` [n], ascending, to be scanned.

        If they are `copied`, or few, a copy of their vectors is scanned, which takes a third of the
        time; making it takes as long as a scan.
        """
        ...

    def vectors(self, nodes: Rows) -> Halves:
        """Return the vectors [n, d] of `nodes` [n], with exactly the bits that were indexed."""
        ...


class Subset(Protocol):
    """Some nodes of a graph, searched by a scan, with the bits of a walk."""

    @property
    def nodes(self) -> Rows:
        """The nodes [n], ascending."""
        ...

    @property
    def is_copy(self) -> bool:
        """Whether a copy of the vectors is scanned, and not the graph's own."""
        ...

    def search(self, queries: Floats, *, count: int) -> tuple[Floats, Rows]:
        """Find the `count` nearest nodes of queries [B, d] exactly; returns what `walk` does."""
        ...


def batches(rows: int, size: int) -> Iterator[slice]:
    """Cut `rows` rows into slices of at most `size`."""
    return (slice(start, min(start + size, rows)) for start in range(0, rows, size))


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Tombstones:
    """Marks dead places: `count` of `size` are dead. Changes return new tombstones.

    `alive` is a bitmap of the other places; None means that no place is dead.
    """

    size: int
    alive: Bits | None = None
    count: int = 0

    def __contains__(self, place: int) -> bool:
        """Return whether the place is dead."""
        return self.alive is not None and not self.alive[place >> 3] >> (place & 7) & 1

    def with_dead(self, places: Sequence[int] | Rows) -> Tombstones:
        """Return the tombstones with `places` dead as well."""
        bits = self._bitmap(self.size) if self.alive is None else self.alive.copy()
        dead = np.unique(np.asarray(places, np.int64))
        died = int((bits[dead >> 3] >> (dead & 7) & 1).sum())
        # Several places may share a byte; plain assignment would apply only one of them.
        np.bitwise_and.at(bits, dead >> 3, (0xFF ^ (1 << (dead & 7))).astype(np.uint8))
        return replace(self, alive=bits, count=self.count + died)

    def without(self, place: int) -> Tombstones:
        """Return the tombstones with `place` alive again."""
        if self.alive is None or place not in self:
            return self
        if self.count == 1:
            return Tombstones(size=self.size)
        bits = self.alive.copy()
        bits[place >> 3] |= 1 << (place & 7)
        return replace(self, alive=bits, count=self.count - 1)

    def of_size(self, size: int) -> Tombstones:
        """Return the tombstones for a larger number of places; the new ones are alive."""
        return replace(self, size=size, alive=None if self.alive is None else self._bitmap(size))

    def alive_places(self, stop: int) -> Rows:
        """Return the alive places below `stop`, ascending."""
        if self.alive is None:
            return np.arange(stop)
        return np.flatnonzero(np.unpackbits(self.alive, bitorder="little", count=stop))

    def _bitmap(self, size: int) -> Bits:
        alive = np.ones(size, bool)
        if self.alive is not None:
            alive[: self.size] = np.unpackbits(self.alive, bitorder="little", count=self.size)
        return np.packbits(alive, bitorder="little")

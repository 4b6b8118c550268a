"""Posted items in frozen indexes, so that each query scans only the newest of them.

Positions count the items in the order in which they were posted, dead ones too, from 0 on. Which
of them lie together in an index is planned as it is for the rows of the memory (`compaction`).

Shapes: n items of an index, m items found, d dimensions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from service.core.index.exact import LiveVectors
from service.core.index.protocol import RowFilter, Segment
from service.core.types import Bits, Bools, Floats, Halves, Rows

# The queue of a walk. With 64, indexes over posted items find 99 % of the three nearest and more:
# `python -m loadtests.parts.posted_items` measures it.
SEALED_EF = 64

Found = tuple[Floats, Rows]  # similarities [m], descending, and positions [m]


@dataclass(frozen=True, kw_only=True, eq=False)
class SealedItems:
    """An index over the positions `rows` [n], ascending: those of `first` to `stop` that it keeps.

    It is None where no item is left of them. `alive` is the bitmap over the n, None if all are.
    """

    first: int
    stop: int
    rows: Rows
    segment: Segment | None
    alive: Bits | None = None
    dead: int = 0

    def search(self, query: Floats, count: int) -> Found:
        """Find the items nearest to a query [1, d], at most `count`."""
        count = min(count, len(self.rows) - self.dead)
        if self.segment is None or not count:
            return _nothing()
        row_filter = None
        if self.alive is not None:
            row_filter = RowFilter(start=0, stop=len(self.rows), alive=self.alive)
        similarities, found = self.segment.search(
            query, count=count, ef=SEALED_EF, row_filter=row_filter
        )
        kept = found[0] >= 0
        return similarities[0][kept], self.rows[found[0][kept]]

    def without(self, position: int) -> SealedItems:
        """Return the same index in which the item at `position` is dead."""
        place = int(np.searchsorted(self.rows, position))
        if place == len(self.rows) or self.rows[place] != position:
            return self
        alive = np.ones(len(self.rows), bool) if self.alive is None else self._alive()
        alive[place] = False
        return self.with_alive(alive)

    def with_alive(self, alive: Bools) -> SealedItems:
        """Return the same index of which the items `alive` [n] are left."""
        dead = len(alive) - int(alive.sum())
        return replace(
            self, alive=np.packbits(alive, bitorder="little") if dead else None, dead=dead
        )

    def _alive(self) -> Bools:
        assert self.alive is not None
        bits = np.unpackbits(self.alive, bitorder="little", count=len(self.rows))
        return bits.astype(bool)


@dataclass(frozen=True, kw_only=True, eq=False)
class ItemSegments:
    """The indexes over all positions before `stop`, and the vectors of those behind it: `tail`.

    The tail is scanned. Without any index there is none.
    """

    sealed: tuple[SealedItems, ...] = ()
    tail: LiveVectors | None = None

    @property
    def stop(self) -> int:
        """The first position that no index has."""
        return self.sealed[-1].stop if self.sealed else 0

    def append(self, position: int, vector: Halves) -> ItemSegments:
        """Return them with a new item, whose vector is [d]."""
        if self.tail is None:
            return self
        tail = with_room(self.tail, position - self.stop)
        tail.write(position - self.stop, vector[None].astype(np.float16))
        return self if tail is self.tail else replace(self, tail=tail)

    def without(self, position: int) -> ItemSegments:
        """Return them after the item at `position` has died."""
        if position >= self.stop:
            return self
        sealed = tuple(
            part.without(position) if part.first <= position < part.stop else part
            for part in self.sealed
        )
        return replace(self, sealed=sealed)

    def with_index(self, index: SealedItems, vectors: LiveVectors, *, count: int) -> ItemSegments:
        """Return them with an index in place of those that it covers.

        `vectors` has those of all `count` positions; the ones behind the last index are copied.
        """
        before = [part for part in self.sealed if part.stop <= index.first]
        after = [part for part in self.sealed if part.first >= index.stop]
        joined = replace(self, sealed=(*before, index, *after))
        if joined.stop == self.stop and self.tail is not None:
            return joined
        scanned = count - joined.stop
        tail = LiveVectors(capacity=max(64, 2 * scanned), dimension=vectors.matrix.shape[1])
        tail.write(0, vectors.matrix[joined.stop : count])
        return replace(joined, tail=tail)

    def search(self, query: Floats, count: int, scanned: RowFilter) -> Found:
        """Find the items nearest to a query [1, d], at most `count` of each index and of the rest.

        `scanned` says which of the positions from `stop` on are alive, counted from there.
        """
        found = [part.search(query, count) for part in self.sealed]
        if self.tail is not None and scanned.stop:
            similarities, rows = self.tail.search(query, count=count, row_filter=scanned)
            kept = rows[0] >= 0
            found.append((similarities[0][kept], rows[0][kept] + self.stop))
        similarities, positions = (np.concatenate([one[part] for one in found]) for part in (0, 1))
        order = np.lexsort((positions, -similarities))[:count]
        return similarities[order], positions[order]


def with_room(vectors: LiveVectors, used: int) -> LiveVectors:
    """`vectors`, or a copy of its first `used` rows with twice the capacity where it is full."""
    if used < vectors.capacity:
        return vectors
    larger = LiveVectors(capacity=2 * vectors.capacity, dimension=vectors.matrix.shape[1])
    larger.write(0, vectors.matrix[:used])
    return larger


def _nothing() -> Found:
    return np.zeros(0, np.float32), np.zeros(0, np.int64)

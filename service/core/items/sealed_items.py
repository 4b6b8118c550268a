"""Posted items in frozen indexes, so that each query scans only the newest of them.

Positions count the items in the order in which they were posted, dead ones too, from 0 on. Which
of them lie together in an index is planned as it is for the rows of the memory (`compaction`).

Shapes: n items of an index, m items found, d dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from service.core.index.bitmaps import count_dead, set_tombstones
from service.core.index.exact import LiveVectors
from service.core.index.protocol import RowFilter, Segment
from service.core.types import Bits, Floats, Halves, Rows

# The queue of a walk. With 64, indexes over posted items find 99 % of the three nearest and more:
# `python -m loadtests.parts.posted_items` measures it.
SEALED_EF = 64

Found = tuple[Floats, Rows]  # similarities [m], descending, and positions [m]


@dataclass(frozen=True, kw_only=True, eq=False)
class SealedItems:
    """An index over the items at the positions `rows` [n], which lie between `first` and `stop`.

    `segment` is None where no item is left there. `alive` is the bitmap over the n items, None if
    all are alive.
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
        return self.with_dead([place])

    def with_dead(self, places: Sequence[int]) -> SealedItems:
        """Return the same index in which the items at these places of `rows` are dead as well."""
        if not len(places):
            return self
        alive = set_tombstones(self.alive, places, len(self.rows))
        return replace(self, alive=alive, dead=count_dead(alive, len(self.rows)))


@dataclass(frozen=True, kw_only=True, eq=False)
class ItemSegments:
    """The indexes over all positions before `stop`, and the vectors of the later ones, the `tail`.

    The tail is scanned. It is None as long as there is no index.
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
        tail = self.tail.with_room(position - self.stop)
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


def _nothing() -> Found:
    return np.zeros(0, np.float32), np.zeros(0, np.int64)

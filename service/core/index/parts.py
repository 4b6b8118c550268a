"""Parts of a memory: ranges of numbered rows, each searched as a whole, live or sealed.

A live part is scanned. Its storage is append-only and has one writer. The writer first writes a row
and then publishes a part that counts it. A sealed part is searched through a segment. A dead row
has a tombstone: it was replaced or deleted.

Shapes: B queries, b rows, n stored rows of a part, d dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Self, TypeVar

import numpy as np

from service.core.index.device_segment import DeviceLiveVectors
from service.core.index.exact import LiveVectors, exact_search
from service.core.index.found_rows import nothing_found, pad, search_sharing
from service.core.index.protocol import RowFilter, Segment, Tombstones
from service.core.types import Bools, Floats, Halves, RowKind, Rows

# The first, short walk through a segment looks for this many rows with a queue of this length.
FIRST_ROWS = 96
FIRST_QUEUE = 128


@dataclass(frozen=True, kw_only=True, eq=False)
class Part:
    """The rows numbered `first` to `stop` - 1; some may be dead, some no longer stored.

    Stored rows are at places 0 to n - 1; `dead` holds their tombstones by place. A live part
    consists of the first rows of its storage `live`. A sealed part has the numbers of its stored
    rows, `rows` [n], ascending, and their segment, which is None if there are none.
    """

    first: int
    stop: int
    dead: Tombstones
    live: LiveVectors | DeviceLiveVectors | None = None
    rows: Rows | None = None
    segment: Segment | None = None
    _filters: dict[RowKind | None, RowFilter] = field(default_factory=dict, init=False, repr=False)

    @property
    def sealed(self) -> bool:
        """Whether the part is sealed."""
        return self.rows is not None

    @property
    def stored_rows(self) -> int:
        """The number n of stored rows, dead ones included."""
        return self.stop - self.first if self.rows is None else len(self.rows)

    def places(self, rows: Rows) -> Rows:
        """Return the places of stored `rows` [b]."""
        return rows - self.first if self.rows is None else np.searchsorted(self.rows, rows)

    def numbers(self, places: Rows) -> Rows:
        """Return the numbers of the rows at `places`, an array of any shape."""
        return places + self.first if self.rows is None else self.rows[places]

    def vectors(self, rows: Rows) -> Halves:
        """Return the keys [b, d] of `rows` [b]."""
        if self.live is not None:
            return self.live.read(self.places(rows))
        if self.segment is None:
            raise ValueError("a sealed part without rows has no vectors")
        return self.segment.vectors(self.places(rows))

    def search(
        self,
        queries: Floats,
        *,
        count: int,
        ef: int | None,
        kind: RowKind | None = None,
        share: int | None = None,
        above: Floats | None = None,
    ) -> tuple[Floats, Rows]:
        """Find the `count` nearest alive rows of each query [B, d], of one kind or of both (None).

        At most `share` rows have the same key; None sets no limit. Returns similarities and row
        numbers, [B, at most `count`]; row -1 fills missing places. `ef` is the length of a graph's
        queue, or None for exact search.

        The caller does not need rows with a similarity of at most `above` [B]. If there are many
        segments, most hold few of the nearest rows, and a short walk finds those. A long walk
        follows only if the last row found is more similar than `above`.
        """
        if not self.stored_rows:
            return nothing_found(len(queries))
        count = min(count, self.stored_rows)
        search = partial(self._found, only=self._filter(kind), share=share)
        if above is None or ef is None or count <= FIRST_ROWS or not self.sealed:
            similarities, places = search(queries, count=count, ef=ef)
        else:
            similarities, places = search(queries, count=FIRST_ROWS, ef=min(ef, FIRST_QUEUE))
            more = similarities[:, -1] > above
            similarities, places = pad(similarities, places, count=count)
            if more.any():
                similarities[more], places[more] = search(queries[more], count=count, ef=ef)
        return similarities, np.where(places < 0, -1, self.numbers(places))

    @property
    def dead_rows(self) -> int:
        """The number of stored rows that have a tombstone."""
        return self.dead.count

    def alive_rows(self) -> Rows:
        """Return the numbers of all rows without a tombstone, ascending."""
        return self.numbers(self.dead.alive_places(self.stored_rows))

    def are_alive(self, rows: Rows) -> Bools:
        """Return which of `rows` [b], all from `first` to `stop` - 1, are stored and not dead."""
        places = self.places(rows)
        everything = RowFilter(start=0, stop=self.stored_rows, alive=self.dead.alive)
        return everything.allows(np.where(self._are_stored(rows, places), places, -1))

    def _are_stored(self, rows: Rows, places: Rows) -> Bools:
        if self.rows is None:
            return np.ones(len(rows), bool)
        if not len(self.rows):
            return np.zeros(len(rows), bool)
        return np.asarray(self.rows[np.minimum(places, len(self.rows) - 1)] == rows)

    def with_tombstones(self, rows: Sequence[int]) -> Self:
        """Return this part with tombstones for `rows`; rows that it does not store are ignored."""
        inside = np.array([row for row in rows if self.first <= row < self.stop], np.int64)
        places = self.places(inside)
        places = places[self._are_stored(inside, places)]
        return replace(self, dead=self.dead.with_dead(places)) if len(places) else self

    def with_alive(self, rows: Rows) -> Self:
        """Return the same part, in which only `rows` (in any order) may be alive."""
        return self.with_tombstones(np.setdiff1d(self.alive_rows(), rows).tolist())

    def of_kind(self, kind: RowKind) -> Bools:
        """Return which stored rows [n] are of a kind; only for parts whose rows have kinds."""
        raise NotImplementedError

    def _found(
        self, queries: Floats, *, count: int, ef: int | None, only: RowFilter, share: int | None
    ) -> tuple[Floats, Rows]:
        """Find places as `search` finds rows. A live part is always scanned."""
        if self.segment is not None and ef is not None:
            some = None if only.alive is None else only
            return self.segment.search(queries, count=count, ef=ef, row_filter=some, share=share)
        if self.live is not None:
            scan = partial(self.live.search, row_filter=only)
        else:
            vectors = self.vectors(self.numbers(np.arange(self.stored_rows)))
            scan = partial(exact_search, vectors, row_filter=only)
        return search_sharing(scan, queries, count=count, most=self.stored_rows, share=share)

    def _filter(self, kind: RowKind | None) -> RowFilter:
        """Return the filter for a kind of rows; equal kinds get the same object."""
        if kind not in self._filters:
            alive = self.dead.alive
            if kind is not None:
                of_kind = np.packbits(self.of_kind(kind), bitorder="little")
                alive = of_kind if alive is None else of_kind & alive[: len(of_kind)]
            made = RowFilter(start=0, stop=self.stored_rows, alive=alive)
            self._filters.setdefault(kind, made)
        return self._filters[kind]


AnyPart = TypeVar("AnyPart", bound=Part)


def with_sealed(parts: Sequence[AnyPart], sealed: AnyPart) -> tuple[AnyPart, ...]:
    """Return `parts` with one sealed part instead of the parts that held its rows."""
    before = (part for part in parts if part.stop <= sealed.first)
    after = (part for part in parts if part.first >= sealed.stop)
    return (*before, sealed, *after)

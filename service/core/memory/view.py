"""One version of the knowledge memory (Eq. 3 and 4 of RAE-XMC): what readers see.

Rows keep their numbers: first the bundle's N instance rows, then its L label rows, then the rows
learned since, in the order of the log. Frozen segments are searched through their graphs, live rows
exactly.

Shapes: B queries, b keys per query, n votes, N instances, L labels, d dimensions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np

from service.core.bundle.bundle import Bundle
from service.core.index.bitmaps import alive_places
from service.core.index.exact import exact_search, nearest, pad
from service.core.index.protocol import RowFilter
from service.core.items.fused_queries import FusedQueries, fused
from service.core.items.fusion import Fusion
from service.core.items.item_memory import ItemMemory
from service.core.memory.compaction import SegmentPlan
from service.core.memory.label_table import LabelTable
from service.core.memory.part import (
    Part,
    Votes,
    WeightedVotes,
    entries_of,
    joined_weights,
)
from service.core.memory.row_ownership import RowOwnership
from service.core.memory.sealed_rows import SealedRows
from service.core.types import Bits, Bools, Floats, Halves, Indices, RowKind, Rows


@dataclass(frozen=True, kw_only=True)
class View:
    """The memory at one version; nothing in it ever changes.

    `base_alive` is a bitmap over the bundle's rows (None: all are alive). `parts` hold the rows
    learned since, in order of their numbers; `plans` say which of them belong in one segment.
    `items` and `fusion` are those of a bundle with an item memory; `item_plans` say which of the
    posted items belong in one index.
    """

    version: int
    bundle: Bundle
    base_alive: Bits | None
    base_dead_rows: int
    parts: tuple[Part, ...]
    plans: tuple[SegmentPlan, ...]
    labels: LabelTable
    ownership: RowOwnership
    items: ItemMemory | None = None
    fusion: Fusion | None = None
    item_plans: tuple[SegmentPlan, ...] = ()

    @property
    def base_rows(self) -> int:
        """N + L of the bundle."""
        return self.bundle.instances + self.bundle.labels

    @property
    def next_row(self) -> int:
        """The number of the next row that is learned."""
        return self.parts[-1].stop if self.parts else self.base_rows

    @property
    def sealed_rows(self) -> int:
        """The number of rows in segments built since the bundle, dead ones included."""
        return sum(part.stored_rows for part in self.parts if isinstance(part, SealedRows))

    @property
    def live_rows(self) -> int:
        """The number of rows learned since the bundle, sealed and dead ones included."""
        return sum(part.stored_rows for part in self.parts)

    @property
    def live_bytes(self) -> int:
        """What rows and labels learned since the bundle take of main memory, estimated."""
        of_items = 0 if self.items is None else self.items.live_bytes
        return self.labels.live_bytes + of_items + sum(part.stored_bytes for part in self.parts)

    @property
    def dead_rows(self) -> int:
        """The number of rows that were replaced or deleted and are still stored."""
        return self.base_dead_rows + sum(part.dead_rows for part in self.parts)

    def alive_rows(self) -> Rows:
        """Return the numbers of all rows without a tombstone, ascending."""
        base = alive_places(self.base_alive, self.base_rows)
        return np.concatenate([base, *(part.alive_rows() for part in self.parts)])

    def alive_rows_within(self, first: int, stop: int) -> Rows:
        """Return the rows without a tombstone of the parts that lie in [first, stop)."""
        rows = [part.alive_rows() for part in self.parts_within(first, stop)]
        return np.concatenate([np.zeros(0, np.int64), *rows])

    def parts_within(self, first: int, stop: int) -> list[Part]:
        """Return the parts whose rows all lie in [first, stop)."""
        return [part for part in self.parts if first <= part.first and part.stop <= stop]

    def unsealed_plans(self) -> Iterator[SegmentPlan]:
        """Yield the plans whose segment is not attached yet."""
        sealed = {id(part.plan) for part in self.parts if isinstance(part, SealedRows)}
        return (plan for plan in self.plans if id(plan) not in sealed)

    def unsealed_item_plans(self) -> Iterator[SegmentPlan]:
        """Yield the plans of posted items whose index is not attached yet."""
        sealed = () if self.items is None else self.items.posted.segments.sealed
        attached = {id(part.rows) for part in sealed}
        return (plan for plan in self.item_plans if id(plan.rows) not in attached)

    def all_unsealed(self) -> Iterator[SegmentPlan]:
        """Yield the plans, of rows and of posted items, whose segment is not attached yet."""
        return chain(self.unsealed_plans(), self.unsealed_item_plans())

    def with_sealed(self, sealed: SealedRows) -> View:
        """Return the view with a sealed part in place of the parts that held its rows."""
        before = [part for part in self.parts if part.stop <= sealed.first]
        after = [part for part in self.parts if part.first >= sealed.stop]
        return replace(self, parts=(*before, sealed, *after))

    def fused(self, queries: Floats, given: Sequence[Rows] | None = None) -> FusedQueries:
        """Fuse the vectors [n, d] of queries with the nearest items, or with those at `given`.

        Without an item memory they stay what they are.
        """
        if self.items is None or self.fusion is None:
            return FusedQueries(vectors=queries)
        return fused(self.items, self.fusion, queries, given)

    def retrieve(
        self, queries: Floats, *, depth: int, kind: RowKind | None = None, exact: bool = False
    ) -> tuple[Floats, Rows]:
        """Find the `depth` nearest keys of each query [B, d].

        `kind` restricts the search to one block of K; `exact` scans all keys in place of the
        graphs. Returns similarities [B, b], descending, and row numbers [B, b]; row -1 fills the
        places for which the memory has no row.
        """
        similarities, rows = self._search_base(queries, depth=depth, kind=kind, exact=exact)
        if self.parts:
            ef = None if exact else self.bundle.manifest.index.ef
            # A row of a part matters only above the base's last row: -inf if the base has too few.
            above = similarities[:, -1]
            results = [
                part.search(queries, count=depth, ef=ef, kind=kind, above=above)
                for part in self.parts
            ]
            similarities = np.hstack([similarities, *(found for found, _ in results)])
            rows = np.hstack([rows, *(found for _, found in results)])
        similarities = np.where(rows < 0, np.float32(-np.inf), similarities)
        return pad(*nearest(similarities, rows, count=depth), count=depth)

    def is_instance(self, rows: Rows) -> Bools:
        """Return which of `rows` [b] are instance rows."""
        instance = rows < self.bundle.instances
        for part, places in self._by_part(rows):
            instance[places] = part.is_instance(rows[places])
        return np.asarray(instance)

    def votes(self, rows: Rows) -> Votes:
        """Return the columns [n] that `rows` [b] vote for, row after row, and counts [b].

        Votes for deleted labels are left out.
        """
        columns, counts, _ = self.weighted_votes(rows)
        return columns, counts

    def weighted_votes(self, rows: Rows) -> WeightedVotes:
        """Return what `votes` does, and the weight of each vote [n], None where all weigh 1.

        Only votes of instances have weights; those of labels weigh 1.
        """
        instances = np.flatnonzero(rows < self.bundle.instances)
        labels = np.flatnonzero((rows >= self.bundle.instances) & (rows < self.base_rows))
        entries, of_instances = entries_of(self.bundle.indptr, rows[instances])
        votes: list[tuple[Rows, Indices, Rows]] = [
            (instances, np.asarray(self.bundle.indices[entries], np.int32), of_instances),
            # The identity block: a label's row votes for its own column.
            (
                labels,
                (rows[labels] - self.bundle.instances).astype(np.int32),
                np.ones(len(labels), np.int64),
            ),
        ]
        of_bundle = self.bundle.vote_weights
        found = [None if of_bundle is None else of_bundle[entries], None]
        for part, places in self._by_part(rows):
            votes.append((places, *part.votes(rows[places])))
            found.append(part.vote_weights(rows[places]))
        key_of_vote, columns, in_order = _in_row_order(votes)
        weights = _weights_in_order(votes, found, in_order)
        if len(self.labels.deleted):
            kept = ~self.labels.is_deleted(columns)
            key_of_vote, columns = key_of_vote[kept], columns[kept]
            weights = None if weights is None else weights[kept]
        return columns, np.bincount(key_of_vote, minlength=len(rows)), weights

    def learned_votes(self, rows: Rows) -> WeightedVotes:
        """Return the votes of those of `rows` [b] that were learned since the bundle.

        Returns the columns [n] that they vote for, row after row, the count of each such row, and
        the weight of each vote [n], None where all weigh 1. Votes for deleted labels are among
        them.
        """
        votes: list[tuple[Rows, Indices, Rows]] = []
        found: list[Floats | None] = []
        for part, places in self._by_part(rows):
            votes.append((places, *part.votes(rows[places])))
            found.append(part.vote_weights(rows[places]))
        if not votes:
            return np.zeros(0, np.int32), np.zeros(0, np.int64), None
        if len(votes) == 1:
            return *votes[0][1:], found[0]
        _, columns, in_order = _in_row_order(votes)
        places = np.concatenate([places for places, _, _ in votes])
        counts = np.concatenate([counts for _, _, counts in votes])
        return columns, counts[np.argsort(places)], _weights_in_order(votes, found, in_order)

    def vectors(self, rows: Rows) -> Halves:
        """Return the keys [b, d] of `rows` [b]."""
        vectors = np.empty((len(rows), self.bundle.keys.shape[1]), np.float16)
        base = rows < self.base_rows
        vectors[base] = self.bundle.keys[rows[base]]
        for part, places in self._by_part(rows):
            vectors[places] = part.vectors(rows[places])
        return vectors

    def text(self, row: int) -> str:
        """Return the text that was encoded as the row's key."""
        if row < self.bundle.instances:
            return self.bundle.instance_texts[row]
        if row < self.base_rows:
            return self.bundle.label_texts[row - self.bundle.instances]
        return next(part for part in self.parts if row < part.stop).text(row)

    def _search_base(
        self, queries: Floats, *, depth: int, kind: RowKind | None, exact: bool
    ) -> tuple[Floats, Rows]:
        """Search the bundle's rows; see `retrieve`."""
        instances, base_rows = self.bundle.instances, self.base_rows
        start = instances if kind is RowKind.LABEL else 0
        stop = instances if kind is RowKind.INSTANCE else base_rows
        row_filter = RowFilter(start=start, stop=stop, alive=self.base_alive)
        if exact:
            return exact_search(self.bundle.keys, queries, count=depth, row_filter=row_filter)
        return self.bundle.segment.search(
            queries,
            count=depth,
            ef=self.bundle.manifest.index.ef,
            row_filter=None if kind is None and self.base_alive is None else row_filter,
        )

    def _by_part(self, rows: Rows) -> Iterator[tuple[Part, Rows]]:
        """Yield each part that holds some of `rows` [b], with their positions in `rows`."""
        if not self.parts or not (rows >= self.base_rows).any():
            return
        for part in self.parts:
            places = np.flatnonzero((rows >= part.first) & (rows < part.stop))
            if len(places):
                yield part, places


def _in_row_order(votes: Sequence[tuple[Rows, Indices, Rows]]) -> tuple[Rows, Indices, Rows]:
    """Join the votes of parts: positions of rows, ascending, columns, and the counts of each row.

    Returns the position of the row that casts each vote [n], ascending, the columns [n], and where
    each vote stood in the parts, one after the other [n].
    """
    row_of_vote = np.concatenate([np.repeat(places, counts) for places, _, counts in votes])
    columns = np.concatenate([columns for _, columns, _ in votes])
    in_order = np.argsort(row_of_vote, kind="stable")
    return row_of_vote[in_order], columns[in_order], in_order


def _weights_in_order(
    votes: Sequence[tuple[Rows, Indices, Rows]],
    found: Sequence[Floats | None],
    in_order: Rows,
) -> Floats | None:
    """Join the weights `found` for the `votes` of parts, in the order of the rows [n]."""
    weights = joined_weights(
        [(of_part, len(columns)) for of_part, (_, columns, _) in zip(found, votes, strict=True)]
    )
    return None if weights is None else weights[in_order]

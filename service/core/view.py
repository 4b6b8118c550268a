"""One version of the knowledge memory (Eq. 3 and 4 of RAE-XMC): what readers see.

Rows are numbered once and for all: the bundle's N instance rows, its L label rows, then live rows
in the order of the log. Frozen segments are searched through their graph, live rows exactly.

Shapes: B queries, b keys a query, N instances, L labels, d dimensions.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from rpds import HashTrieMap

from service.core.bundle import Bundle
from service.core.index import RowFilter
from service.core.index.exact import exact_search, nearest, pad
from service.core.labels import LabelTable
from service.core.live import LiveRows, dead_rows
from service.core.types import (
    Bits,
    Bools,
    Floats,
    Indices,
    RowKind,
    Rows,
)


@dataclass(frozen=True, kw_only=True)
class View:
    """The memory at one version; nothing in it ever changes.

    `own_rows` are the live rows of each label that was put, by its column: those that its next
    form replaces.
    """

    version: int
    bundle: Bundle
    base_alive: Bits | None
    live: tuple[LiveRows, ...]
    labels: LabelTable
    own_rows: HashTrieMap[int, tuple[int, ...]] = field(default_factory=HashTrieMap)

    @property
    def base_rows(self) -> int:
        """N + L of the bundle."""
        return self.bundle.instances + self.bundle.labels

    @property
    def live_rows(self) -> int:
        """Live rows, dead ones included."""
        return sum(part.count for part in self.live)

    @property
    def dead_rows(self) -> int:
        """Rows that were replaced or deleted and are still stored."""
        return dead_rows(self.base_alive, self.base_rows) + sum(part.dead for part in self.live)

    def retrieve(
        self, queries: Floats, *, depth: int, kind: RowKind | None = None, exact: bool = False
    ) -> tuple[Floats, Rows]:
        """Find the `depth` nearest keys of each query [B, d].

        Returns similarities [B, b], descending, and row numbers [B, b]; row -1 fills places for
        which the memory has no row. `kind` searches one block of K only.
        """
        found = [self._search_base(queries, depth=depth, kind=kind, exact=exact)]
        found += [part.search(queries, count=depth, kind=kind) for part in self.live]
        similarities = np.hstack([part[0] for part in found])
        rows = np.hstack([part[1] for part in found])
        similarities = np.where(rows < 0, np.float32(-np.inf), similarities)
        return pad(*nearest(similarities, rows, count=depth), count=depth)

    def is_instance(self, rows: Rows) -> Bools:
        """Which of `rows` [b] are instance rows."""
        answer = rows < self.bundle.instances
        for part in self.live:
            own = (rows >= part.first) & (rows < part.first + part.count)
            answer[own] = part.store.is_instance[rows[own] - part.first]
        return np.asarray(answer)

    def votes(self, rows: Rows) -> tuple[Indices, NDArray[np.int64]]:
        """The value rows of `rows` [b]: columns [n] one row after the other, and how many each.

        Votes for deleted labels are left out.
        """
        columns, counts = self._base_votes(rows)
        if (rows >= self.base_rows).any():
            columns, counts = self._insert_live_votes(rows, columns, counts)
        if len(self.labels.deleted):
            columns, counts = self._drop_deleted(columns, counts)
        return columns, counts

    def text(self, row: int) -> str:
        """The text that a row's key was made from."""
        if row < self.bundle.instances:
            return self.bundle.instance_texts[row]
        if row < self.base_rows:
            return self.bundle.label_texts[row - self.bundle.instances]
        part = next(part for part in self.live if row in part)
        return part.store.texts[row - part.first]

    def _search_base(
        self, queries: Floats, *, depth: int, kind: RowKind | None, exact: bool
    ) -> tuple[Floats, Rows]:
        instances, rows = self.bundle.instances, self.base_rows
        start = instances if kind is RowKind.LABEL else 0
        stop = instances if kind is RowKind.INSTANCE else rows
        among = RowFilter(start=start, stop=stop, alive=self.base_alive)
        if exact:
            return exact_search(self.bundle.keys, queries, count=depth, among=among)
        return self.bundle.segment.search(
            queries,
            count=depth,
            ef=self.bundle.manifest.index.ef,
            among=None if kind is None and self.base_alive is None else among,
        )

    def _base_votes(self, rows: Rows) -> tuple[Indices, NDArray[np.int64]]:
        """Gather CSR rows; a label row of the identity block votes for its own column."""
        instances = self.bundle.instances
        is_instance = rows < instances
        is_label = ~is_instance & (rows < self.base_rows)
        clicked = rows[is_instance]
        counts = np.zeros(len(rows), np.int64)
        counts[is_label] = 1
        counts[is_instance] = self.bundle.indptr[clicked + 1] - self.bundle.indptr[clicked]
        ends = np.cumsum(counts)
        # Position of each vote in `indices`: its row's start, plus its place within the row.
        starts = np.zeros(len(rows), np.int64)
        starts[is_instance] = self.bundle.indptr[clicked]
        offsets = np.repeat(starts - (ends - counts), counts)
        places = np.arange(len(offsets)) + offsets
        from_label = np.repeat(is_label, counts)
        places[from_label] = 0
        columns = self.bundle.indices[places] if len(self.bundle.indices) else places
        columns = np.asarray(columns, np.int32)
        columns[from_label] = rows[is_label] - instances
        return columns, counts

    def _insert_live_votes(
        self, rows: Rows, columns: Indices, counts: NDArray[np.int64]
    ) -> tuple[Indices, NDArray[np.int64]]:
        pieces = np.split(columns, np.cumsum(counts)[:-1])
        for part in self.live:
            own = np.flatnonzero((rows >= part.first) & (rows < part.first + part.count))
            for place in own:
                pieces[place] = part.store.votes[int(rows[place]) - part.first]
                counts[place] = len(pieces[place])
        return (np.concatenate(pieces) if pieces else columns), counts

    def _drop_deleted(
        self, columns: Indices, counts: NDArray[np.int64]
    ) -> tuple[Indices, NDArray[np.int64]]:
        kept = ~np.isin(columns, np.fromiter(self.labels.deleted, np.int32))
        key_of_vote = np.repeat(np.arange(len(counts)), counts)
        return columns[kept], np.bincount(key_of_vote[kept], minlength=len(counts))

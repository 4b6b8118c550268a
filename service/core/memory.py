"""The knowledge memory (Eq. 3 and 4 of RAE-XMC) as a log-structured store.

Rows are numbered once and for all: the bundle's N instance rows, its L label rows, then live rows
in the order of the log. Frozen segments are searched through their graph, live rows exactly.
Readers take `KnowledgeMemory.view` once a request and never lock; the one writer calls `apply`,
which publishes the next view by one reference swap.

Shapes: B queries, b keys a query, N instances, L labels, d dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray
from rpds import HashTrieMap

from service.core.bundle import Bundle
from service.core.errors import MemoryFull
from service.core.index import RowFilter
from service.core.index.exact import exact_search, nearest, pad
from service.core.labels import LabelTable
from service.core.live import LiveRows, LiveStore, NewRow, dead_rows, without
from service.core.types import (
    Bits,
    Bools,
    Floats,
    Halves,
    Indices,
    Label,
    NewLabel,
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
        if self.live:
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


@dataclass(frozen=True, kw_only=True)
class MemoryLimits:
    """`live_rows` is the most that the memory takes; `block_rows` the size of one live store."""

    live_rows: int = 1_000_000
    block_rows: int = 16_384


@dataclass(frozen=True, kw_only=True)
class PutLabel:
    """Create or replace a label; vectors [1 + queries, d] of its text, then of its queries."""

    sequence: int
    label: NewLabel
    vectors: Halves


class KnowledgeMemory:
    """Publishes views; `apply` belongs to the single writer."""

    def __init__(self, bundle: Bundle, limits: MemoryLimits | None = None) -> None:
        """Start from a bundle, at version 0."""
        self._limits = limits or MemoryLimits()
        self._view = View(
            version=0,
            bundle=bundle,
            base_alive=None,
            live=(),
            labels=LabelTable(base_ids=bundle.label_ids, base_texts=bundle.label_texts),
        )

    @property
    def view(self) -> View:
        """The newest view; take it once a request."""
        return self._view

    def room(self, rows: int) -> None:
        """Raise `MemoryFull` unless `rows` more live rows fit; called before anything is logged."""
        if self._view.live_rows + rows > self._limits.live_rows:
            raise MemoryFull(
                f"the memory holds {self._view.live_rows} live rows and takes at most"
                f" {self._limits.live_rows}"
            )

    def apply(self, changes: Sequence[PutLabel]) -> View:
        """Apply changes in the order of the log and publish one new view, or none on failure."""
        view = self._view
        for change in changes:
            view = self._put(view, change)
        self._view = view
        return view

    def _put(self, view: View, change: PutLabel) -> View:
        new = change.label
        known = view.labels.column(new.id)
        column = view.labels.columns if known is None else known
        view = _bury(view, column)
        votes = np.array([column], np.int32)
        rows = [NewRow(kind=RowKind.LABEL, text=new.text, votes=votes)]
        rows += [NewRow(kind=RowKind.INSTANCE, text=text, votes=votes) for text in new.queries]
        view, numbers = self._append(view, rows, change.vectors)
        label = Label(
            index=column,
            id=new.id,
            text=new.text,
            queries=new.queries,
            metadata=new.metadata,
            novel=column >= view.bundle.labels,
            version=change.sequence,
        )
        return replace(
            view,
            version=change.sequence,
            labels=view.labels.put(label),
            own_rows=view.own_rows.insert(column, numbers),
        )

    def _append(
        self, view: View, rows: list[NewRow], vectors: Halves
    ) -> tuple[View, tuple[int, ...]]:
        live = list(view.live)
        numbers: list[int] = []
        while rows:
            if not live or live[-1].count == live[-1].store.capacity:
                live.append(self._new_block(view, live))
            last = live[-1]
            fits = min(len(rows), last.store.capacity - last.count)
            last.store.write(last.count, rows[:fits], vectors[:fits])
            numbers += range(last.first + last.count, last.first + last.count + fits)
            live[-1] = replace(last, count=last.count + fits)
            rows, vectors = rows[fits:], vectors[fits:]
        return replace(view, live=tuple(live)), tuple(numbers)

    def _new_block(self, view: View, live: list[LiveRows]) -> LiveRows:
        store = LiveStore(
            capacity=self._limits.block_rows, dimension=view.bundle.manifest.encoder.dimension
        )
        first = live[-1].first + live[-1].count if live else view.base_rows
        return LiveRows(store=store, first=first, count=0)


def _bury(view: View, column: int) -> View:
    """Mark the rows of the label's last form dead; instances that voted for it stay."""
    base = column < view.bundle.labels
    rows = view.own_rows.get(column, (view.bundle.instances + column,) if base else ())
    for row in rows:
        view = _bury_base(view, row) if row < view.base_rows else _bury_live(view, row)
    return view


def _bury_base(view: View, row: int) -> View:
    return replace(view, base_alive=without(view.base_alive, row, view.base_rows))


def _bury_live(view: View, row: int) -> View:
    live = tuple(part.bury(row) if row in part else part for part in view.live)
    return replace(view, live=live)

"""The knowledge memory as a log-structured store: frozen segments, live rows, published views.

Readers take `KnowledgeMemory.view` once a request and never lock; the one writer calls `apply`,
which publishes the next view by one reference swap.

Shapes: d dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from service.core.bundle import Bundle
from service.core.errors import MemoryFull
from service.core.labels import LabelTable
from service.core.live import LiveRows, LiveStore, NewRow, without
from service.core.types import (
    Halves,
    Label,
    NewLabel,
    RowKind,
)
from service.core.view import View


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

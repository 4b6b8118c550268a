"""A view in the making: changes are applied to it one by one, and become visible together.

Only the writer drafts. Rows are collected and written in one step; nothing that a published view
counts is ever touched, so a draft can be dropped at any time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import singledispatchmethod

import numpy as np
from rpds import HashTrieSet

from service.core.memory.changes import Change, DeleteLabel, Passed, PutInstance, PutLabel
from service.core.memory.compaction import FAN_OUT, extended
from service.core.memory.label_table import LabelTable
from service.core.memory.live_rows import LiveRows, LiveStore, NewRow
from service.core.memory.part import Part, without
from service.core.memory.sealed_rows import SealedRows
from service.core.memory.view import Click, View, base_dead
from service.core.types import Label, NewLabel, RowKind, Rows


@dataclass(frozen=True, kw_only=True)
class MemoryLimits:
    """`live_rows` is the most that the memory takes beside its bundle.

    `seal_rows` is the size of a block of live rows, which is sealed when it is full; `fan_out`
    neighbours of one size are merged.
    """

    live_rows: int = 1_000_000
    seal_rows: int = 16_384
    fan_out: int = FAN_OUT


class Draft:
    """Collects changes over a view; `view` makes the next one."""

    def __init__(self, view: View, limits: MemoryLimits) -> None:
        """Start from what `view` holds."""
        self._view, self._limits = view, limits
        self._labels, self._ledger = view.labels, view.ledger
        self._rows: list[NewRow] = []
        self._buried: list[int] = []
        self._next = view.next_row
        self._version = view.version

    @property
    def version(self) -> int:
        """The last change's number."""
        return self._version

    @property
    def labels(self) -> LabelTable:
        """The labels after all changes so far."""
        return self._labels

    @property
    def live_rows(self) -> int:
        """Stored live rows, those to come included."""
        return self._view.live_rows + len(self._rows)

    def votes_of(self, query: str) -> tuple[int, ...]:
        """The columns that a posted query votes for after all changes so far."""
        click = self._ledger.clicks.get(query)
        return click.columns if click else ()

    def apply(self, changes: Sequence[Change]) -> None:
        """Apply changes in the order of the log."""
        for change in changes:
            self._change(change)
            self._version = change.sequence
            if self._blocks(self._next) != self._blocks(self._written):
                # A block is full: what lies in it now decides what is sealed, so that plans
                # depend on the log alone, not on where commits happened to end.
                self._plan()

    def view(self) -> View:
        """The view with all changes."""
        self._write()
        return replace(self._view, version=self._version, labels=self._labels, ledger=self._ledger)

    # Changes -----------------------------------------------------------------------------

    @singledispatchmethod
    def _change(self, change: Change) -> None:
        raise TypeError(f"no change of the memory: {change}")

    @_change.register
    def _pass(self, change: Passed) -> None:
        pass

    @_change.register
    def _put_label(self, change: PutLabel) -> None:
        new, known = change.label, self._labels.get(change.label.id)
        column = self._labels.columns if known is None else known.index
        if known is None or (known.text, known.queries) != (new.text, new.queries):
            if known is not None:
                self._buried += self._own_rows(column)
            votes = np.array([column], np.int32)
            kinds = [RowKind.LABEL, *(RowKind.INSTANCE for _ in new.queries)]
            texts = [new.text, *new.queries]
            numbers = [
                self._append(NewRow(kind=kind, text=text, votes=votes, vector=vector))
                for kind, text, vector in zip(kinds, texts, change.vectors, strict=True)
            ]
            self._ledger = replace(
                self._ledger, own_rows=self._ledger.own_rows.insert(column, tuple(numbers))
            )
        self._labels = self._labels.put(
            Label(
                index=column,
                id=new.id,
                text=new.text,
                queries=new.queries,
                metadata=new.metadata,
                novel=known.novel if known else True,
                version=change.sequence,
            )
        )

    @_change.register
    def _delete_label(self, change: DeleteLabel) -> None:
        label = self._labels.get(change.id)
        if label is None:
            return
        self._buried += self._own_rows(label.index)
        self._labels = self._labels.delete(label)
        self._forget_clicks(label.index)
        self._bury_voteless_instances(label.index)
        self._ledger = replace(self._ledger, own_rows=self._ledger.own_rows.discard(label.index))

    @_change.register
    def _put_instance(self, change: PutInstance) -> None:
        """One row a query, as in the training data: a popular query must not fill the depth."""
        query = change.instance.query
        known = self._ledger.clicks.get(query)
        posted = {self._labels.column(label_id) for label_id in change.instance.labels}
        columns = {column for column in posted if column is not None}
        if known is not None:
            columns |= set(known.columns)
            if columns == set(known.columns):
                return
            self._buried.append(known.row)
        if not columns:
            return
        votes = tuple(sorted(columns))
        row = self._append(
            NewRow(
                kind=RowKind.INSTANCE,
                text=query,
                votes=np.array(votes, np.int32),
                vector=change.vectors[0],
            )
        )
        clickers = self._ledger.clickers
        for column in votes:
            clickers = clickers.insert(column, clickers.get(column, HashTrieSet()).insert(query))
        self._ledger = replace(
            self._ledger,
            clicks=self._ledger.clicks.insert(query, Click(row=row, columns=votes)),
            clickers=clickers,
        )

    # Rows --------------------------------------------------------------------------------

    @property
    def _written(self) -> int:
        return self._next - len(self._rows)

    def _blocks(self, stop: int) -> int:
        """How many blocks are full once rows up to `stop` are written."""
        return (stop - self._view.base_rows) // self._limits.seal_rows

    def _append(self, row: NewRow) -> int:
        self._rows.append(row)
        self._next += 1
        return self._next - 1

    def _own_rows(self, column: int) -> tuple[int, ...]:
        return self._ledger.rows_of(column, self._view.bundle)

    def _forget_clicks(self, column: int) -> None:
        """Posted queries lose their vote for a deleted label, and their row with the last one."""
        clicks, clickers = self._ledger.clicks, self._ledger.clickers
        for query in clickers.get(column, HashTrieSet()):
            click = clicks[query]
            left = tuple(voted for voted in click.columns if voted != column)
            if left:
                clicks = clicks.insert(query, replace(click, columns=left))
            else:
                clicks = clicks.remove(query)
                self._buried.append(click.row)
        self._ledger = replace(self._ledger, clicks=clicks, clickers=clickers.discard(column))

    def _bury_voteless_instances(self, column: int) -> None:
        """Instance rows of the bundle whose last label was deleted would only take up depth."""
        bundle = self._view.bundle
        if column >= bundle.labels:
            return
        places = np.flatnonzero(bundle.indices == column)
        for row in (np.searchsorted(bundle.indptr, places, side="right") - 1).tolist():
            voted = bundle.indices[bundle.indptr[row] : bundle.indptr[row + 1]]
            if self._labels.is_deleted(voted).all():
                self._buried.append(row)

    def _write(self) -> None:
        """Append the collected rows and bury the dead."""
        self._append_rows()
        parts = [_buried(part, self._buried) for part in self._view.parts]
        base_rows = self._view.base_rows
        base = sorted({row for row in self._buried if row < base_rows})
        alive = self._view.base_alive
        if base:
            alive = without(alive, base, base_rows)
        self._view = replace(
            self._view,
            parts=tuple(parts),
            base_alive=alive,
            base_dead=base_dead(alive, self._view.bundle) if base else self._view.base_dead,
        )
        self._buried = []

    def _append_rows(self) -> None:
        rows, parts = self._rows, list(self._view.parts)
        self._rows = []
        while rows:
            last = parts[-1] if parts else None
            if not isinstance(last, LiveRows) or last.full:
                last = self._new_block(last.stop if last else self._view.base_rows)
                parts.append(last)
            room = last.store.capacity - last.count
            parts[-1] = last.append(rows[:room])
            rows = rows[room:]
        self._view = replace(self._view, parts=tuple(parts))

    def _new_block(self, first: int) -> LiveRows:
        size = self._limits.seal_rows
        dimension = self._view.bundle.manifest.encoder.dimension
        return LiveRows(store=LiveStore(capacity=size, dimension=dimension), first=first, count=0)

    def _plan(self) -> None:
        """Plan the sealing of blocks that have become full."""
        self._write()
        planned = self._view.extents[-1].stop if self._view.extents else self._view.base_rows
        full = [
            (part.first, part.stop)
            for part in self._view.parts
            if isinstance(part, LiveRows) and part.full and part.first >= planned
        ]
        if full:
            extents = extended(
                self._view.extents, full, living=self._living, fan_out=self._limits.fan_out
            )
            self._view = replace(self._view, extents=extents)

    def _living(self, first: int, stop: int) -> Rows:
        found = [
            part.living() for part in self._view.parts if first <= part.first and part.stop <= stop
        ]
        return np.concatenate([np.zeros(0, np.int64), *found])


def attached(view: View, sealed: SealedRows) -> View:
    """The view with a sealed part in place of the parts that held its rows."""
    return replace(
        view,
        parts=tuple(
            sorted(
                [part for part in view.parts if not covers(sealed, part)] + [sealed],
                key=lambda part: part.first,
            )
        ),
    )


def covers(sealed: SealedRows, part: Part) -> bool:
    """Whether a sealed part replaces another."""
    return sealed.first <= part.first and part.stop <= sealed.stop


def _buried(part: Part, rows: Sequence[int]) -> Part:
    own = sorted({row for row in rows if part.first <= row < part.stop})
    return part.bury(own) if own else part


def as_posted(labels: LabelTable, label_id: str) -> NewLabel | None:
    """The label of this id as a client would have to post it; None if there is none."""
    label = labels.get(label_id)
    if label is None:
        return None
    return NewLabel(id=label.id, text=label.text, queries=label.queries, metadata=label.metadata)

"""A draft: the next view in the making.

Changes are applied to a draft one by one and become visible together when it is published. Only
the writer makes drafts. A draft never alters what a published view counts, so it can be dropped at
any time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import singledispatchmethod

import numpy as np

from service.core.changes import (
    Change,
    DeleteItem,
    DeleteLabel,
    PutInstance,
    PutItem,
    PutLabel,
    UseBundle,
)
from service.core.items.fused_queries import fused
from service.core.items.item_memory import ItemMemory
from service.core.memory.compaction import FAN_OUT, plan_merges, plans_after_put
from service.core.memory.label_table import LabelTable
from service.core.memory.live_rows import LiveRows, NewRow
from service.core.memory.pending_rows import PendingRows
from service.core.memory.row_ownership import Click, Weights, voteless_bundle_instances
from service.core.memory.view import View
from service.core.types import Floats, Halves, Label, RowKind


@dataclass(frozen=True, kw_only=True)
class MemoryLimits:
    """How much the memory may learn, and how rows are sealed.

    `live_rows` is the largest number of stored rows beyond the bundle's, sealed rows included, and
    `live_bytes` what these and the labels learned may take of main memory, estimated.
    Live rows lie in blocks of `seal_rows`; a full block is sealed, and `fan_out` neighbouring
    segments of one level are merged. So are posted items, in blocks of `seal_items`.
    """

    live_rows: int = 1_000_000
    live_bytes: int = 4 * 1024**3
    seal_rows: int = 16_384
    seal_items: int = 2_000
    fan_out: int = FAN_OUT


class Draft:
    """Applies changes on top of a view; `view` returns the next one."""

    def __init__(self, view: View, limits: MemoryLimits) -> None:
        """Start from what `view` holds."""
        self._view, self._limits = view, limits
        self._labels, self._ownership, self._items = view.labels, view.ownership, view.items
        self._pending = PendingRows(view, block_rows=limits.seal_rows)
        self._version, self._item_plans = view.version, view.item_plans

    @property
    def version(self) -> int:
        """The sequence number of the last change."""
        return self._version

    @property
    def labels(self) -> LabelTable:
        """The labels after all changes so far."""
        return self._labels

    @property
    def items(self) -> ItemMemory | None:
        """The item memory after all changes so far, None if the bundle has none."""
        return self._items

    @property
    def live_rows(self) -> int:
        """The number of stored rows beyond the bundle's, including those still to be written."""
        return self._view.live_rows + self._pending.count

    @property
    def live_bytes(self) -> int:
        """The view's `live_bytes` with what is still to be written."""
        new_labels = self._labels.live_bytes - self._view.labels.live_bytes
        new_items = 0
        if self._items is not None and self._view.items is not None:
            new_items = self._items.live_bytes - self._view.items.live_bytes
        return self._view.live_bytes + self._pending.size + new_labels + new_items

    def votes_of(self, query: str) -> tuple[int, ...]:
        """Return the columns that a posted query votes for after all changes so far."""
        return self._ownership.votes_of(query)

    def weights_of(self, query: str) -> Weights:
        """Return the weights of these votes that are not 1, by column."""
        return self._ownership.weights_of(query)

    def apply(self, changes: Sequence[Change]) -> None:
        """Apply changes in the order of the log."""
        for change in changes:
            self._apply(change)
            self._version = change.sequence
            if self._pending.fill_a_block:
                # The rows that are alive now decide what is sealed, so that plans depend on the
                # log alone and not on how the changes were grouped into commits.
                self._view = _with_full_blocks_planned(
                    self._pending.write(self._view), self._limits.fan_out
                )

    def view(self) -> View:
        """Return the view that holds all changes."""
        self._view = self._pending.write(self._view)
        return replace(
            self._view,
            version=self._version,
            labels=self._labels,
            ownership=self._ownership,
            items=self._items,
            item_plans=self._item_plans,
        )

    @singledispatchmethod
    def _apply(self, change: Change) -> None:
        raise TypeError(f"the memory knows no change of type {type(change).__name__}")

    @_apply.register
    def _use_bundle(self, change: UseBundle) -> None:
        pass

    @_apply.register
    def _put_item(self, change: PutItem) -> None:
        """Keep an item whose text is the same: a trained one would lose its learned value."""
        item, items = change.item, self._items
        if items is None:
            return
        place = items.find(item.id)
        if place is None or items.text_at(place) != item.text:
            [projected] = self._projected(change.vectors[:1])
            self._items = items.put(item.id, item.text, change.vectors[0], projected)
            self._item_plans = plans_after_put(
                self._item_plans,
                self._items.posted,
                before=items.posted.count,
                block=self._limits.seal_items,
                fan_out=self._limits.fan_out,
            )

    @_apply.register
    def _delete_item(self, change: DeleteItem) -> None:
        if self._items is not None:
            self._items = self._items.delete(change.id)

    @_apply.register
    def _put_label(self, change: PutLabel) -> None:
        posted, known = change.label, self._labels.get(change.label.id)
        column = self._labels.columns if known is None else known.index
        if known is None or (known.text, known.queries) != (posted.text, posted.queries):
            if known is not None:
                self._tombstone_rows_of_label(column)
            self._append_rows_of_label(change, column)
        self._labels = self._labels.put(
            Label(
                index=column,
                id=posted.id,
                text=posted.text,
                queries=posted.queries,
                metadata=posted.metadata,
                novel=known.novel if known else True,
                version=change.sequence,
            )
        )

    @_apply.register
    def _delete_label(self, change: DeleteLabel) -> None:
        label = self._labels.get(change.id)
        if label is None:
            return
        self._tombstone_rows_of_label(label.index)
        self._labels = self._labels.delete(label)
        self._ownership, voteless = self._ownership.without_label(label.index)
        self._pending.tombstone(voteless)
        self._pending.tombstone(
            voteless_bundle_instances(self._view.bundle, self._labels, label.index)
        )

    @_apply.register
    def _put_instance(self, change: PutInstance) -> None:
        """Keep one row per query, as in the training data: a popular query must not fill b.

        A label that is clicked again has the weight of the last click.
        """
        query, weight = change.instance.query, change.instance.vote_weight
        known, weights_before = self._ownership.clicks.get(query), self.weights_of(query)
        found = {self._labels.column(label_id) for label_id in change.instance.labels}
        columns = {column for column in found if column is not None}
        weights = {voted: old for voted, old in weights_before.items() if voted not in columns}
        if weight != 1.0:
            weights |= dict.fromkeys(columns, weight)
        if known is not None:
            columns |= set(known.columns)
            if columns == set(known.columns) and weights == weights_before:
                return
            self._pending.tombstone([known.row])
        if not columns:
            return
        votes = tuple(sorted(columns))
        row = self._pending.append(
            NewRow(
                kind=RowKind.INSTANCE,
                text=query,
                votes=np.array(votes, np.int32),
                vector=self._fused(change.vectors[:1])[0],
                weights=_weights_of_votes(votes, weights),
            )
        )
        click = Click(row=row, columns=votes)
        self._ownership = self._ownership.with_click(query, click, weights)

    def _append_rows_of_label(self, change: PutLabel, column: int) -> None:
        """Append a label row for the text and an instance row for each query."""
        votes = np.array([column], np.int32)
        texts = [change.label.text, *change.label.queries]
        kinds = [RowKind.LABEL, *(RowKind.INSTANCE for _ in change.label.queries)]
        vectors = [change.vectors[0], *self._fused(change.vectors[1:])]
        rows = [
            self._pending.append(NewRow(kind=kind, text=text, votes=votes, vector=vector))
            for kind, text, vector in zip(kinds, texts, vectors, strict=True)
        ]
        self._ownership = self._ownership.with_label_rows(column, rows)

    def _projected(self, vectors: Halves) -> Halves:
        """What queries read of items [m, 2, d], from their vectors [m, d].

        A draft without a fusion fuses no query, so nothing is read.
        """
        if self._view.fusion is None:
            return np.zeros((len(vectors), 2, vectors.shape[1]), np.float16)
        return self._view.fusion.project(vectors)

    def _fused(self, vectors: Halves) -> Halves:
        """The keys [n, d] of posted queries: their vectors, fused with the items known so far.

        Posted items are scanned, so that every process and every replay gets the same keys.
        """
        fusion = self._view.fusion
        if self._items is None or fusion is None:
            return vectors
        items = self._items.scanned()
        return fused(items, fusion, vectors.astype(np.float32)).vectors.astype(np.float16)

    def _tombstone_rows_of_label(self, column: int) -> None:
        self._pending.tombstone(self._ownership.rows_of_label(column, self._view.bundle))


def _weights_of_votes(votes: Sequence[int], weights: Weights) -> Floats | None:
    """The weights [n] of votes for these columns, None where each weighs 1."""
    if not weights:
        return None
    return np.array([weights.get(column, 1.0) for column in votes], np.float32)


def _with_full_blocks_planned(view: View, fan_out: int) -> View:
    """Return `view` with plans for the blocks that have become full."""
    planned = view.plans[-1].stop if view.plans else view.base_rows
    full_blocks = [
        (part.first, part.stop)
        for part in view.parts
        if isinstance(part, LiveRows) and part.full and part.first >= planned
    ]
    if not full_blocks:
        return view
    plans = plan_merges(view.plans, full_blocks, alive_rows=view.alive_rows_within, fan_out=fan_out)
    return replace(view, plans=plans)

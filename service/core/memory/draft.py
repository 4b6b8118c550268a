"""A draft: the next view while it is being built.

Changes are applied to a draft one by one, and become visible together when it is published. Only
the writer makes drafts. A draft never alters the rows that a published view counts, so it can be
dropped at any time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import singledispatchmethod

import numpy as np

from service.core.changes import (
    Change,
    ChangeLabel,
    DeleteInstance,
    DeleteItem,
    DeleteLabel,
    DeleteRule,
    PutInstance,
    PutItem,
    PutLabel,
    PutRule,
    UseBundle,
)
from service.core.index.compaction import FAN_OUT
from service.core.items.fusion import fused
from service.core.lexical.word_index import most_bytes
from service.core.memory.decay import PLAIN, Vote, hour_of
from service.core.memory.part import NewRow
from service.core.memory.row_ownership import Click
from service.core.memory.rule_table import MOST_WORK
from service.core.memory.view import View
from service.core.types import Halves, Label, NewInstance, RowKind, label_as


@dataclass(frozen=True, kw_only=True)
class MemoryLimits:
    """Limits on what the memory may learn, and the sizes at which it seals.

    `live_rows` is the largest number of stored rows beyond the bundle's, including sealed rows.
    `live_bytes` limits the estimated main memory of these rows and of learned labels. Live rows lie
    in blocks of `seal_rows`. A full block is sealed, and `fan_out` neighboring segments of one
    level are merged. Posted items are treated alike, in blocks of `seal_items`. `rule_work` limits
    what the rules that act on one query may cost it.
    """

    live_rows: int = 1_000_000
    live_bytes: int = 4 * 1024**3
    seal_rows: int = 16_384
    seal_items: int = 2_000
    fan_out: int = FAN_OUT
    rule_work: int = MOST_WORK


class Draft:
    """Applies changes on top of a view; `view` returns the next view.

    `labels`, `ownership`, `items`, `rules` and `version` reflect all changes so far.
    """

    def __init__(self, view: View, limits: MemoryLimits) -> None:
        """Start from the content of `view`."""
        self._view, self._limits = view, limits
        self.labels, self.ownership, self.items = view.labels, view.ownership, view.items
        self.rules = view.rules
        self._no_vector = np.zeros(view.bundle.manifest.encoder.dimension, np.float16)
        self._pending = PendingRows(view, block_rows=limits.seal_rows)
        self.version = view.version
        self._count_spare_deaths()

    @property
    def live_rows(self) -> int:
        """The number of stored rows beyond the bundle's, including those not yet written."""
        return self._view.live_rows + len(self._pending.rows)

    @property
    def live_bytes(self) -> int:
        """The `live_bytes` of the next view; rows not yet written take at most as much."""
        of_items = 0 if self.items is None else self.items.live_bytes
        of_rows = self._view.learned.stored_bytes + self._pending.size
        return self.labels.live_bytes + of_items + of_rows + self.rules.size

    def apply(self, changes: Sequence[Change]) -> None:
        """Apply changes in the order of the log."""
        for change in changes:
            self._apply(change)
            self.version = change.sequence
            if self._pending.fill_a_block or self._too_many_died():
                # The rows that are alive now decide what is sealed. So plans depend on the log
                # alone, not on how changes were grouped into commits.
                self._view = _planned(self._pending.write(self._view), self._limits)
                self._count_spare_deaths()

    def _count_spare_deaths(self) -> None:
        self._spare_deaths = self._view.learned.spare_deaths()
        self._spare_base_deaths = self._view.base.spare_deaths()

    def _too_many_died(self) -> bool:
        """Return whether a plan may have too many dead rows; `_planned` then counts exactly."""
        pending = self._pending
        return (
            pending.deaths >= self._spare_deaths or pending.base_deaths >= self._spare_base_deaths
        )

    def view(self) -> View:
        """Return the view that holds all changes."""
        self._view = self._pending.write(self._view)
        return replace(
            self._view,
            version=self.version,
            labels=self.labels,
            ownership=self.ownership,
            items=self.items,
            rules=self.rules,
        )

    @singledispatchmethod
    def _apply(self, change: Change) -> None:
        raise TypeError(f"the memory knows no change of type {type(change).__name__}")

    @_apply.register
    def _use_bundle(self, change: UseBundle) -> None:
        pass

    @_apply.register
    def _put_rule(self, change: PutRule) -> None:
        self.rules = self.rules.put(change.rule)

    @_apply.register
    def _delete_rule(self, change: DeleteRule) -> None:
        self.rules = self.rules.delete(change.id, change.tenant)

    @_apply.register
    def _change_items(self, change: PutItem | DeleteItem) -> None:
        if self.items is not None:
            limits = self._limits
            self.items = self.items.apply(
                change, seal_items=limits.seal_items, fan_out=limits.fan_out
            )

    @_apply.register
    def _put_label(self, change: PutLabel) -> None:
        posted, known = change.label, self.labels.get(change.label.id)
        column = self.labels.columns if known is None else known.index
        texts = posted.text, posted.aliases, posted.queries
        if known is None or (known.text, known.aliases, known.queries) != texts:
            if known is not None:
                self._tombstone_rows_of_label(column)
            self._append_rows_of_label(change, column)
        self.labels = self.labels.put(
            label_as(
                Label,
                posted,
                index=column,
                novel=known.novel if known else True,
                version=change.sequence,
            )
        )

    @_apply.register
    def _change_label(self, change: ChangeLabel) -> None:
        label = self.labels.get(change.id)
        if label is not None:
            changed = replace(label, **change.facts, version=change.sequence)
            self.labels = self.labels.put(changed)

    @_apply.register
    def _delete_label(self, change: DeleteLabel) -> None:
        label = self.labels.get(change.id)
        if label is None:
            return
        self._tombstone_rows_of_label(label.index)
        self.labels = self.labels.delete(label)
        self.ownership, voteless = self.ownership.without_label(label.index)
        self._pending.tombstone(voteless)
        self._pending.tombstone(
            self.ownership.voteless_instances(self._view.bundle, self.labels, label.index)
        )

    @_apply.register
    def _put_instance(self, change: PutInstance) -> None:
        """Give the query a single row: one popular query must not take all b places.

        If a label is clicked again, the weight and the time of the last click count. One that
        arrives late counts only for labels without a newer click.
        """
        instance, query = change.instance, change.instance.query
        known, columns = self.ownership.click(query), self.columns(instance.labels)
        if instance.clicks is None:
            click = known.after(columns, vote_of(instance))
        elif columns:
            scale = self.ownership.trained_scale(query, self._view.bundle)
            click = known.counted(columns, instance.clicks, hour_of(instance.at), scale)
        else:
            return
        if click.is_like(known):
            if click != known:  # more clicks in the same proportion
                self.ownership = self.ownership.with_click(query, click)
            return
        if known.columns:
            self._pending.tombstone([known.row])
        vector = self._fused(change.vectors[:1])[0]
        row = self._append_click(query, click, vector, origin=click.origin)
        self.ownership = self.ownership.with_click(query, replace(click, row=row))

    @_apply.register
    def _delete_instance(self, change: DeleteInstance) -> None:
        """Remove the query's votes for the labels.

        A row that keeps other votes is replaced, because the votes of a row never change.
        """
        query, columns = change.query, self.columns(change.labels)
        click = self.ownership.click(query)
        posted = columns.intersection(click.columns)
        if posted:
            remaining = self._replaced(query, click, posted, origin=click.origin)
            self.ownership = self.ownership.without_votes(query, posted, remaining)
        if change.trained:
            self._unlearn(query, columns, change.sequence)

    def _unlearn(self, query: str, columns: Collection[int], version: int) -> None:
        """Remove a query's votes from training rows, and the query from those of labels."""
        for instance, votes in self.ownership.trained(query, self._view.bundle).items():
            lost = set(columns).intersection(votes.columns)
            if lost:
                # Votes for deleted labels go, too: a row with no other votes must not stay alive.
                voted = np.array(votes.columns, np.int32)
                deleted = voted[self.labels.is_deleted(voted)].tolist()
                remaining = self._replaced(query, votes, lost.union(deleted), origin=instance)
                self.ownership = self.ownership.with_reduced(instance, lost, remaining)
        for column in sorted(columns):
            self._unlist(query, column, version)

    def learned(self, query: str, labels: Iterable[str], *, trained: bool) -> tuple[str, ...]:
        """Return the ids whose pairs with the query `_delete_instance` would change."""
        voted = set(self.ownership.votes_of(query))
        if trained:
            for votes in self.ownership.trained(query, self._view.bundle).values():
                voted.update(votes.columns)
        found = {label_id: self.labels.get(label_id) for label_id in labels}
        return tuple(
            label_id
            for label_id, label in found.items()
            if label is not None and (label.index in voted or (trained and query in label.queries))
        )

    def _replaced(
        self, query: str, votes: Click, lost: Collection[int], *, origin: int = -1
    ) -> Click:
        """Tombstone a query's row, and append one with the votes that are not `lost`, if any."""
        remaining = votes.without(lost)
        self._pending.tombstone([votes.row])
        if not remaining.columns:
            return replace(remaining, row=-1)
        row = self._append_click(query, remaining, self._vector(votes.row), origin=origin)
        return replace(remaining, row=row)

    def _append_click(
        self, query: str, click: Click, vector: Halves | None, *, origin: int = -1
    ) -> int:
        """Append a row with the votes of a click; return its number. See `_vector` for None."""
        votes = [click.votes.get(column, PLAIN) for column in click.columns]
        weights = np.array([vote.weight for vote in votes], np.float32)
        return self._pending.append(
            NewRow(
                kind=RowKind.INSTANCE,
                text=query,
                votes=np.array(click.columns, np.int32),
                vector=self._no_vector if vector is None else vector,
                foreign=vector is None,
                weights=weights.tolist(),
                hours=[vote.hour for vote in votes],
                origin=origin,
            )
        )

    def _unlist(self, query: str, column: int, version: int) -> None:
        """Remove a query from those that a label was posted with."""
        label = self.labels.at(column)
        if query not in label.queries:
            return
        rows, aliases = self.ownership.rows_of_label(column, self._view.bundle), len(label.aliases)
        own, listed = rows[: 1 + aliases], zip(label.queries, rows[1 + aliases :], strict=True)
        of_others = {row: other for other, row in listed if other != query}
        self._pending.tombstone(set(rows).difference(own, of_others))
        rows = (*own, *of_others)
        self.ownership = self.ownership.with_label_rows(column, rows, aliases=aliases)
        queries = tuple(other for other in label.queries if other != query)
        self.labels = self.labels.put(replace(label, queries=queries, version=version))

    def columns(self, labels: Iterable[str]) -> set[int]:
        """Return the columns of the labels with these ids, without unknown ones."""
        columns = map(self.labels.column, labels)
        return {column for column in columns if column is not None}

    def _vector(self, row: int) -> Halves | None:
        """Return the key [d] of a row that is alive in the view, or not yet written.

        It is None if this process does not hold the key: another shard does.
        """
        pending, view = self._pending.row(row), self._view
        if pending is not None:
            return None if pending.foreign else pending.vector
        rows = np.array([row])
        own = view.keys.share is None or view.are_alive(rows)[0]
        if not (view.keys.held and own):
            return None
        vector: Halves = view.vectors(rows)[0]
        return vector

    def _append_rows_of_label(self, change: PutLabel, column: int) -> None:
        """Append a label row for the text and an instance row for each alias and each query."""
        label, votes = change.label, np.array([column], np.int32)
        texts, own = [label.text, *label.aliases, *label.queries], 1 + len(label.aliases)
        kinds = [RowKind.LABEL, *[RowKind.INSTANCE] * (len(texts) - 1)]
        vectors = [*change.vectors[:own], *self._fused(change.vectors[own:])]
        rows = [
            self._pending.append(NewRow(kind=kind, text=text, votes=votes, vector=vector))
            for kind, text, vector in zip(kinds, texts, vectors, strict=True)
        ]
        self.ownership = self.ownership.with_label_rows(column, rows, aliases=own - 1)

    def _fused(self, vectors: Halves) -> Halves:
        """Return the keys [n, d] of posted queries: their vectors, fused with the items so far.

        Posted items are scanned, so every process and every replay gets the same keys.
        """
        if self.items is None:
            return vectors
        queries = vectors.astype(np.float32)
        return fused(self.items.scanned(), queries).vectors.astype(np.float16)

    def _tombstone_rows_of_label(self, column: int) -> None:
        self._pending.tombstone(self.ownership.rows_of_label(column, self._view.bundle))


def vote_of(instance: NewInstance) -> Vote:
    """Return the vote of a posted query for each of its labels, as it is stored."""
    return Vote(weight=instance.vote_weight, hour=hour_of(instance.at))


def _planned(view: View, limits: MemoryLimits) -> View:
    """Return `view` with plans for full blocks, and new plans where too many rows have died."""
    learned = view.learned.planned(fan_out=limits.fan_out)
    return replace(view, learned=learned, base=view.base.reconsidered())


class PendingRows:
    """Numbers new rows and collects tombstones. `write` puts both into a view in one step."""

    def __init__(self, view: View, *, block_rows: int) -> None:
        """Continue after the last row of `view`; live rows lie in blocks of `block_rows`."""
        self._first_live_row, self._block_rows = view.base_rows, block_rows
        self._share = view.keys.share
        self._next_row = view.next_row
        self.rows: list[NewRow] = []  # rows to append
        self._tombstones: list[int] = []
        self._size, self._sized = 0, 0  # of the rows, and how many of them it counts
        self.base_deaths = 0  # at most this many rows of the bundle die

    def append(self, row: NewRow) -> int:
        """Collect a row, and return the number that it will have. Other shards' rows are dead."""
        if self._share is not None and not row.foreign:
            row = replace(row, foreign=not self._share.holds(row.vector[None])[0])
        self.rows.append(row)
        self._next_row += 1
        if self._share is not None and row.foreign:
            self._tombstones.append(self._next_row - 1)
        return self._next_row - 1

    def row(self, number: int) -> NewRow | None:
        """Return the collected row with this number, or None if it was written before."""
        place = number - self._next_row + len(self.rows)
        return self.rows[place] if place >= 0 else None

    def tombstone(self, rows: Iterable[int]) -> None:
        """Collect tombstones for rows of the view and for collected rows."""
        before = len(self._tombstones)
        self._tombstones += rows
        self.base_deaths += sum(row < self._first_live_row for row in self._tombstones[before:])

    @property
    def size(self) -> int:
        """The most bytes of main memory that the rows will take."""
        uncounted = self.rows[self._sized :]
        self._size += sum(row.size + most_bytes(row.text) for row in uncounted)
        self._sized = len(self.rows)
        return self._size

    @property
    def deaths(self) -> int:
        """The number of tombstones for learned rows; a row with two counts twice."""
        return len(self._tombstones) - self.base_deaths

    @property
    def fill_a_block(self) -> bool:
        """Whether a block becomes full when the collected rows are written."""
        written = self._next_row - len(self.rows)
        return self._full_blocks(self._next_row) != self._full_blocks(written)

    def write(self, view: View) -> View:
        """Return `view` with the collected rows and tombstones, and clear the collection.

        Rows are written behind those that published views count, so no published view changes.
        """
        tombstones = sorted(set(self._tombstones))
        learned = view.learned.with_rows(self.rows, view.bundle, block_rows=self._block_rows)
        self.rows, self._tombstones, self.base_deaths = [], [], 0
        self._size, self._sized = 0, 0
        return replace(
            view,
            base=view.base.with_tombstones(tombstones),
            learned=learned.with_tombstones(tombstones),
        )

    def _full_blocks(self, stop: int) -> int:
        """Return how many blocks are full if all rows before `stop` are written."""
        return (stop - self._first_live_row) // self._block_rows

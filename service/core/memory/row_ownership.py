"""Maps from labels, and from posted queries, to their rows. Only the writer needs them.

All maps are persistent: a change returns a new `RowOwnership` that shares all but a few nodes with
the old one. So each view keeps its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import numpy as np
from rpds import HashTrieMap, HashTrieSet

from service.core.bundle.bundle import Bundle
from service.core.memory.label_table import LabelTable

NEWEST_QUERIES = 100  # queries of a column that are kept in order

Weights = Mapping[int, float]  # a query's weight for each column; a missing one is 1
NO_WEIGHTS: Weights = MappingProxyType({})


@dataclass(frozen=True, kw_only=True, slots=True)
class Click:
    """The row of a posted query, and the columns that it votes for, with weights."""

    row: int
    columns: tuple[int, ...]
    weights: Weights


@dataclass(frozen=True, kw_only=True, slots=True)
class VotingQueries:
    """The posted queries that vote for one column; the newest ones in order, the last one first."""

    all: HashTrieSet[str] = field(default_factory=HashTrieSet)
    newest: tuple[str, ...] = ()

    def __len__(self) -> int:
        """Return the number of queries."""
        return len(self.all)

    def insert(self, query: str) -> VotingQueries:
        """Return the queries with a new one, or with one moved that was posted again."""
        others = self.newest
        if query in others:
            others = tuple(other for other in others if other != query)
        newest = (query, *others[: NEWEST_QUERIES - 1])
        return VotingQueries(all=self.all.insert(query), newest=newest)


NO_QUERIES = VotingQueries()


@dataclass(frozen=True, kw_only=True)
class RowOwnership:
    """The rows of labels and of posted queries.

    `label_rows` holds, by column, the rows of each posted label. The label's next version replaces
    these rows. `clicks` holds the posted queries. `queries_by_column` holds, by column, the queries
    that vote for it.
    """

    label_rows: HashTrieMap[int, tuple[int, ...]] = field(default_factory=HashTrieMap)
    clicks: HashTrieMap[str, Click] = field(default_factory=HashTrieMap)
    queries_by_column: HashTrieMap[int, VotingQueries] = field(default_factory=HashTrieMap)

    @classmethod
    def of_bundle(cls, bundle: Bundle) -> RowOwnership:
        """Return the ownership of a bundle's rows. A snapshot also holds clicks from before it."""
        ownership = cls()
        for row in bundle.clicks.tolist():
            entries = slice(bundle.indptr[row], bundle.indptr[row + 1])
            columns = bundle.indices[entries].tolist()
            weights = NO_WEIGHTS
            if bundle.vote_weights is not None:
                of_votes = zip(columns, bundle.vote_weights[entries].tolist(), strict=True)
                weights = {column: weight for column, weight in of_votes if weight != 1.0}
            click = Click(row=row, columns=tuple(columns), weights=weights or NO_WEIGHTS)
            ownership = ownership.with_click(bundle.instance_texts[row], click)
        return ownership

    def rows_of_label(self, column: int, bundle: Bundle) -> tuple[int, ...]:
        """Return the row of a label's text, followed by the rows of its queries."""
        posted = self.label_rows.get(column)
        if posted is not None:
            return posted
        return (bundle.instances + column, *bundle.label_details.at(column).rows)

    def votes_of(self, query: str) -> tuple[int, ...]:
        """Return the columns that a posted query votes for."""
        click = self.clicks.get(query)
        return click.columns if click else ()

    def weights_of(self, query: str) -> Weights:
        """Return the weights, by column, of a posted query's votes that are not 1."""
        click = self.clicks.get(query)
        return click.weights if click else NO_WEIGHTS

    def queries_for(self, column: int) -> VotingQueries:
        """Return the posted queries that vote for a column."""
        return self.queries_by_column.get(column, NO_QUERIES)

    def with_label_rows(self, column: int, rows: Sequence[int]) -> RowOwnership:
        """Return the ownership with these rows for the label at `column`."""
        return replace(self, label_rows=self.label_rows.insert(column, tuple(rows)))

    def with_click(self, query: str, click: Click) -> RowOwnership:
        """Return the ownership with this row and these votes for a posted query."""
        by_column = self.queries_by_column
        for column in click.columns:
            queries = by_column.get(column, NO_QUERIES).insert(query)
            by_column = by_column.insert(column, queries)
        clicks = self.clicks.insert(query, click)
        return replace(self, clicks=clicks, queries_by_column=by_column)

    def without_label(self, column: int) -> tuple[RowOwnership, list[int]]:
        """Return the ownership without a label, and the rows of queries that voted only for it.

        The label's own rows are not among the returned rows.
        """
        clicks, voteless = self.clicks, []
        for query in self.queries_for(column).all:
            click = clicks[query]
            remaining = tuple(voted for voted in click.columns if voted != column)
            if remaining:
                weights = {voted: of for voted, of in click.weights.items() if voted != column}
                other = Click(row=click.row, columns=remaining, weights=weights or NO_WEIGHTS)
                clicks = clicks.insert(query, other)
            else:
                clicks = clicks.remove(query)
                voteless.append(click.row)
        ownership = RowOwnership(
            label_rows=self.label_rows.discard(column),
            clicks=clicks,
            queries_by_column=self.queries_by_column.discard(column),
        )
        return ownership, voteless


def voteless_bundle_instances(bundle: Bundle, labels: LabelTable, column: int) -> list[int]:
    """Return the bundle's instance rows that voted for `column` and now have no vote.

    `labels` no longer holds the label at `column`. Such rows would only use up retrieval depth.
    """
    if column >= bundle.labels:
        return []
    voteless = []
    entries = np.flatnonzero(bundle.indices == column)
    for row in (np.searchsorted(bundle.indptr, entries, side="right") - 1).tolist():
        voted = bundle.indices[bundle.indptr[row] : bundle.indptr[row + 1]]
        if labels.is_deleted(voted).all():
            voteless.append(row)
    return voteless

"""Which rows belong to which label and to which posted query; only the writer needs to know.

All maps are persistent: a change returns a new `RowOwnership` that shares all but a few nodes with
the old one, so each view keeps its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from rpds import HashTrieMap, HashTrieSet

from service.core.bundle.bundle import Bundle
from service.core.memory.label_table import LabelTable

NEWEST_QUERIES = 100  # of a column that are kept in order


@dataclass(frozen=True, kw_only=True, slots=True)
class Click:
    """A posted query's row, and the columns that it votes for."""

    row: int
    columns: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class VotingQueries:
    """The posted queries that vote for one column; of these the newest, the last one first."""

    all: HashTrieSet[str] = field(default_factory=HashTrieSet)
    newest: tuple[str, ...] = ()

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self.all)

    def insert(self, query: str) -> VotingQueries:
        """Return the queries with a new one, or with one that was posted again."""
        others = self.newest
        if query in others:
            others = tuple(other for other in others if other != query)
        newest = (query, *others[: NEWEST_QUERIES - 1])
        return VotingQueries(all=self.all.insert(query), newest=newest)


NO_QUERIES = VotingQueries()
Weights = Mapping[int, float]  # of a query's votes, by column; a column without one weighs 1


@dataclass(frozen=True, kw_only=True)
class RowOwnership:
    """The rows of labels and of posted queries.

    `label_rows` holds, by column, the rows of each label that was posted: those that the label's
    next version replaces. `clicks` holds the posted queries, `click_weights` the weights of those
    whose votes do not all weigh 1, `queries_by_column` the queries that vote for a column.
    """

    label_rows: HashTrieMap[int, tuple[int, ...]] = field(default_factory=HashTrieMap)
    clicks: HashTrieMap[str, Click] = field(default_factory=HashTrieMap)
    click_weights: HashTrieMap[str, Weights] = field(default_factory=HashTrieMap)
    queries_by_column: HashTrieMap[int, VotingQueries] = field(default_factory=HashTrieMap)

    @classmethod
    def of_bundle(cls, bundle: Bundle) -> RowOwnership:
        """Return the ownership of a bundle's rows; a snapshot has the clicks posted before it."""
        ownership = cls()
        for row in bundle.clicks.tolist():
            entries = slice(bundle.indptr[row], bundle.indptr[row + 1])
            columns = bundle.indices[entries].tolist()
            weights: Weights = {}
            if bundle.vote_weights is not None:
                of_votes = zip(columns, bundle.vote_weights[entries].tolist(), strict=True)
                weights = {column: weight for column, weight in of_votes if weight != 1.0}
            click = Click(row=row, columns=tuple(columns))
            ownership = ownership.with_click(bundle.instance_texts[row], click, weights)
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
        """Return the weights of a posted query's votes that are not 1, by column."""
        return self.click_weights.get(query, {})

    def queries_for(self, column: int) -> VotingQueries:
        """Return the posted queries that vote for a column."""
        return self.queries_by_column.get(column, NO_QUERIES)

    def with_label_rows(self, column: int, rows: Sequence[int]) -> RowOwnership:
        """Return the ownership in which the label at `column` has these rows."""
        return replace(self, label_rows=self.label_rows.insert(column, tuple(rows)))

    def with_click(self, query: str, click: Click, weights: Weights) -> RowOwnership:
        """Return the ownership in which a posted query has this row, these votes and weights."""
        by_column = self.queries_by_column
        for column in click.columns:
            queries = by_column.get(column, NO_QUERIES).insert(query)
            by_column = by_column.insert(column, queries)
        return replace(
            self,
            clicks=self.clicks.insert(query, click),
            click_weights=_with_weights(self.click_weights, query, weights),
            queries_by_column=by_column,
        )

    def without_label(self, column: int) -> tuple[RowOwnership, list[int]]:
        """Return the ownership without a label, and the rows of queries that voted for it alone.

        The rows of the label itself are not among them.
        """
        clicks, click_weights, voteless = self.clicks, self.click_weights, []
        for query in self.queries_for(column).all:
            click, weights = clicks[query], self.weights_of(query)
            if column in weights:
                others = {voted: weights[voted] for voted in weights if voted != column}
                click_weights = _with_weights(click_weights, query, others)
            remaining = tuple(voted for voted in click.columns if voted != column)
            if remaining:
                clicks = clicks.insert(query, replace(click, columns=remaining))
            else:
                clicks = clicks.remove(query)
                voteless.append(click.row)
        ownership = RowOwnership(
            label_rows=self.label_rows.discard(column),
            clicks=clicks,
            click_weights=click_weights,
            queries_by_column=self.queries_by_column.discard(column),
        )
        return ownership, voteless


def _with_weights(
    all_weights: HashTrieMap[str, Weights], query: str, weights: Weights
) -> HashTrieMap[str, Weights]:
    return all_weights.insert(query, weights) if weights else all_weights.discard(query)


def voteless_bundle_instances(bundle: Bundle, labels: LabelTable, column: int) -> list[int]:
    """Return the bundle's instance rows that voted for `column` and have no vote left.

    `labels` no longer holds the label at `column`. Such rows would only take up retrieval depth.
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

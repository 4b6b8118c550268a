"""Maps from labels and queries to their rows. Only the writer needs them.

All maps are persistent: a change returns a new `RowOwnership` that shares all but a few nodes with
the old one. So each view keeps its own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import numpy as np
from rpds import HashTrieMap, HashTrieSet

from service.core.bundle.bundle import Bundle
from service.core.memory.decay import NEVER, PLAIN, Vote
from service.core.memory.label_table import LabelTable
from service.core.types import Rows

NEWEST_QUERIES = 100  # queries of a column that are kept in order

VotesByColumn = Mapping[int, Vote]  # of one query; a missing one is plain
ALL_PLAIN: VotesByColumn = MappingProxyType({})


@dataclass(frozen=True, kw_only=True, slots=True)
class Click:
    """The row of a query, the columns that it votes for, and the votes that are not plain."""

    row: int
    columns: tuple[int, ...]
    votes: VotesByColumn

    def after(self, columns: Collection[int], vote: Vote) -> Click:
        """Return the same row after a click on some columns.

        A column whose vote has a later hour keeps it: clicks may arrive in any order.
        """
        voted, votes = set(self.columns), dict(self.votes)
        for column in columns:
            known = votes.get(column, PLAIN)
            if column in voted and NEVER not in (known.hour, vote.hour) and known.hour > vote.hour:
                continue
            voted.add(column)
            votes[column] = vote
        special = {column: one for column, one in votes.items() if one != PLAIN}
        return replace(self, columns=tuple(sorted(voted)), votes=special or ALL_PLAIN)

    def is_like(self, other: Click) -> bool:
        """Return whether the votes are those of another row."""
        return set(self.columns) == set(other.columns) and self.votes == other.votes

    def without(self, columns: Collection[int]) -> Click:
        """Return the same row without its votes for some columns."""
        kept = tuple(column for column in self.columns if column not in columns)
        votes = {column: vote for column, vote in self.votes.items() if column not in columns}
        return Click(row=self.row, columns=kept, votes=votes or ALL_PLAIN)


NO_CLICK = Click(row=-1, columns=(), votes=ALL_PLAIN)


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

    def remove(self, query: str) -> VotingQueries:
        """Return the queries without one of them."""
        newest = tuple(other for other in self.newest if other != query)
        return VotingQueries(all=self.all.remove(query), newest=newest)


NO_QUERIES = VotingQueries()


@dataclass(frozen=True, kw_only=True)
class RowOwnership:
    """The rows of labels and of posted queries.

    `label_rows` holds, by column, the rows of each posted label. The label's next version replaces
    these rows. `aliases` are those of them that hold aliases. `clicks` holds the posted queries.
    `queries_by_column` holds, by column, the queries that vote for it.

    `reduced` holds the bundle's training rows that lost votes by unlearning, each with the row that
    has its other votes; that row is -1 if there are none. `lost_votes` counts, by column, the votes
    that training rows lost.
    """

    label_rows: HashTrieMap[int, tuple[int, ...]] = field(default_factory=HashTrieMap)
    aliases: HashTrieSet[int] = field(default_factory=HashTrieSet)
    clicks: HashTrieMap[str, Click] = field(default_factory=HashTrieMap)
    queries_by_column: HashTrieMap[int, VotingQueries] = field(default_factory=HashTrieMap)
    reduced: HashTrieMap[int, Click] = field(default_factory=HashTrieMap)
    lost_votes: HashTrieMap[int, int] = field(default_factory=HashTrieMap)

    @classmethod
    def of_bundle(cls, bundle: Bundle) -> RowOwnership:
        """Return the ownership of a bundle's rows. A snapshot also holds clicks from before it."""
        ownership = cls()
        for row in bundle.clicks.tolist():
            ownership = ownership.with_click(bundle.instance_texts[row], _votes_in(bundle, row))
        return ownership

    def rows_of_label(self, column: int, bundle: Bundle) -> tuple[int, ...]:
        """Return the row of a label's text, then the rows of its aliases and of its queries."""
        posted = self.label_rows.get(column)
        if posted is not None:
            return posted
        return (bundle.instances + column, *bundle.label_details.at(column).rows)

    def click(self, query: str) -> Click:
        """Return the row and the votes of a posted query, `NO_CLICK` for any other."""
        return self.clicks.get(query, NO_CLICK)

    def votes_of(self, query: str) -> tuple[int, ...]:
        """Return the columns that a posted query votes for."""
        return self.click(query).columns

    def special_votes_of(self, query: str) -> VotesByColumn:
        """Return a posted query's votes that are not plain, by column."""
        return self.click(query).votes

    def queries_for(self, column: int) -> VotingQueries:
        """Return the posted queries that vote for a column."""
        return self.queries_by_column.get(column, NO_QUERIES)

    def trained(self, query: str, bundle: Bundle) -> Mapping[int, Click]:
        """Return the bundle's training rows of exactly this query, with the votes that each has.

        Votes for deleted labels may be among them. Aliases of labels are no training rows.
        """
        rows = bundle.words.places_of_all(query)
        candidates = bundle.wordless if rows is None else rows[rows < bundle.instances]
        found = bundle.instance_texts.equal_to(query, candidates).tolist()
        others = (bundle.posted, bundle.aliases)
        trained = [row for row in found if not any(_is_among(rows, row) for rows in others)]
        return {row: self.reduced.get(row) or _votes_in(bundle, row) for row in trained}

    def with_label_rows(
        self, column: int, rows: Sequence[int], *, aliases: int = 0
    ) -> RowOwnership:
        """Return the ownership with these rows for the label at `column`.

        Behind the row of the text are those of `aliases`, which replace the earlier ones.
        """
        return replace(
            self,
            label_rows=self.label_rows.insert(column, tuple(rows)),
            aliases=self._without_aliases(column).update(rows[1 : 1 + aliases]),
        )

    def _without_aliases(self, column: int) -> HashTrieSet[int]:
        """Return `aliases` without those of the label at `column`."""
        kept = self.aliases
        for row in self.label_rows.get(column, ()) if len(kept) else ():
            kept = kept.discard(row)
        return kept

    def with_click(self, query: str, click: Click) -> RowOwnership:
        """Return the ownership with this row and these votes for a posted query."""
        by_column = self.queries_by_column
        for column in click.columns:
            queries = by_column.get(column, NO_QUERIES).insert(query)
            by_column = by_column.insert(column, queries)
        clicks = self.clicks.insert(query, click)
        return replace(self, clicks=clicks, queries_by_column=by_column)

    def without_votes(self, query: str, columns: Collection[int], remaining: Click) -> RowOwnership:
        """Return the ownership in which a posted query lost its votes for `columns`.

        `remaining` are its other votes, perhaps none, with their row.
        """
        by_column = self.queries_by_column
        for column in columns:
            queries = by_column[column].remove(query)
            by_column = (
                by_column.insert(column, queries) if len(queries) else by_column.remove(column)
            )
        clicks = (
            self.clicks.insert(query, remaining) if remaining.columns else self.clicks.remove(query)
        )
        return replace(self, clicks=clicks, queries_by_column=by_column)

    def with_reduced(
        self, instance: int, columns: Collection[int], remaining: Click
    ) -> RowOwnership:
        """Return the ownership in which the bundle's `instance` lost its votes for `columns`.

        `remaining` are its other votes, perhaps none, with their row.
        """
        lost = self.lost_votes
        for column in columns:
            lost = lost.insert(column, lost.get(column, 0) + 1)
        return replace(self, reduced=self.reduced.insert(instance, remaining), lost_votes=lost)

    def without_label(self, column: int) -> tuple[RowOwnership, list[int]]:
        """Return the ownership without a label, and the rows of queries that voted only for it.

        The label's own rows are not among the returned rows.
        """
        clicks, voteless = self.clicks, []
        for query in self.queries_for(column).all:
            click = clicks[query]
            remaining = click.without({column})
            if remaining.columns:
                clicks = clicks.insert(query, remaining)
            else:
                clicks = clicks.remove(query)
                voteless.append(click.row)
        ownership = replace(
            self,
            label_rows=self.label_rows.discard(column),
            aliases=self._without_aliases(column),
            clicks=clicks,
            queries_by_column=self.queries_by_column.discard(column),
        )
        return ownership, voteless

    def voteless_instances(self, bundle: Bundle, labels: LabelTable, column: int) -> list[int]:
        """Return the bundle's instances that voted for `column` and now have no vote.

        `labels` no longer holds the label at `column`. Such rows would only use up retrieval depth.
        If an instance has lost votes by unlearning, the row that has the others is returned.
        """
        if column >= bundle.labels:
            return []
        voteless = []
        entries = np.flatnonzero(bundle.indices == column)
        for row in (np.searchsorted(bundle.indptr, entries, side="right") - 1).tolist():
            reduced, voted = self.reduced.get(row), bundle.indices[_entries(bundle, row)]
            if reduced is not None:
                if column not in reduced.columns:
                    continue  # the row may be dead already, and no longer stored
                row, voted = reduced.row, np.array(reduced.columns, np.int32)
            if labels.is_deleted(voted).all():
                voteless.append(row)
        return voteless


def _entries(bundle: Bundle, row: int) -> slice:
    """Return where the votes of an instance are in the bundle's values."""
    return slice(int(bundle.indptr[row]), int(bundle.indptr[row + 1]))


def _votes_in(bundle: Bundle, row: int) -> Click:
    """Return the votes of an instance in the bundle."""
    entries = _entries(bundle, row)
    columns = bundle.indices[entries].tolist()
    weights = [PLAIN.weight] * len(columns)
    if bundle.vote_weights is not None:
        weights = bundle.vote_weights[entries].tolist()
    hours = [PLAIN.hour] * len(columns)
    if bundle.vote_hours is not None:
        hours = bundle.vote_hours[entries].tolist()
    votes = dict(zip(columns, map(Vote, weights, hours), strict=True))
    special = {column: vote for column, vote in votes.items() if vote != PLAIN}
    return Click(row=row, columns=tuple(columns), votes=special or ALL_PLAIN)


def _is_among(rows: Rows, row: int) -> bool:
    """Return whether a row is one of `rows`, which ascend."""
    place = int(np.searchsorted(rows, row))
    return place < len(rows) and bool(rows[place] == row)

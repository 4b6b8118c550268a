"""Maps from labels and queries to their rows. Only the writer needs them.

All maps are persistent: a change returns a new `RowOwnership` that shares all but a few nodes with
the old one. So each view keeps its own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from rpds import HashTrieMap, HashTrieSet

from service.core.bundle.bundle import Bundle
from service.core.memory.decay import PLAIN, Vote, is_late
from service.core.memory.label_table import LabelTable
from service.core.types import Rows

NEWEST_QUERIES = 100  # queries of a column that are kept in order

VotesByColumn = Mapping[int, Vote]  # of one query; a missing one is plain
ALL_PLAIN: VotesByColumn = MappingProxyType({})
MOST_WEIGHT = 1_000.0  # of a vote that counts clicks


@dataclass(frozen=True, kw_only=True, slots=True)
class Click:
    """The row of a query, the columns that it votes for, and the votes that are not plain.

    A vote of weight 1 stands for `scale` clicks, see `counted`. `origin` is as in `NewRow`.
    """

    row: int
    columns: tuple[int, ...]
    votes: VotesByColumn
    scale: float = 1.0
    origin: int = -1

    def after(self, columns: Collection[int], vote: Vote) -> Click:
        """Return the same row after a click on some columns.

        A column whose vote has a later hour keeps it: clicks may arrive in any order.
        """
        voted, votes = set(self.columns), dict(self.votes)
        for column in columns:
            known = votes.get(column, PLAIN)
            if column in voted and is_late(vote, known=known):
                continue
            voted.add(column)
            votes[column] = vote
        return self._voting({column: votes.get(column, PLAIN) for column in voted})

    def counted(
        self, columns: Collection[int], clicks: float, hour: int, trained: TrainedScale | None
    ) -> Click:
        """Return the same row after further `clicks` on each of some columns.

        Votes are in proportion to clicks. If the query was `trained`, a vote of weight 1 stands for
        as many clicks as one of its trained row, on average, and the row counts as a trained one.
        Otherwise weights have the mean 1, as those of a trained row would.
        """
        scale = self.scale if trained is None else trained.scale
        votes = {column: self.votes.get(column, PLAIN) for column in self.columns}
        for column in columns:
            known = votes.get(column)
            if known is None or known.weight < 0:
                known = Vote(0.0, hour)
            weight = known.weight + clicks / scale
            votes[column] = Vote(weight, max(known.hour, hour))
        if trained is None:
            weights = [vote.weight for vote in votes.values() if vote.weight > 0]
            scale *= (mean := sum(weights) / len(weights))
            for column, vote in votes.items():
                if vote.weight > 0:
                    votes[column] = vote._replace(weight=vote.weight / mean)
        votes = {
            column: vote._replace(weight=float(np.float32(min(vote.weight, MOST_WEIGHT))))
            for column, vote in votes.items()
        }
        origin = self.origin if trained is None else trained.row
        return replace(self._voting(votes), scale=float(np.float32(scale)), origin=origin)

    def _voting(self, votes: VotesByColumn) -> Click:
        """Return the same row with these votes, one for each of its columns."""
        special = {column: vote for column, vote in votes.items() if vote != PLAIN}
        return replace(self, columns=tuple(sorted(votes)), votes=special or ALL_PLAIN)

    def is_like(self, other: Click) -> bool:
        """Return whether the votes are those of another row."""
        voted = set(self.columns) == set(other.columns) and self.votes == other.votes
        return voted and self.origin == other.origin

    def without(self, columns: Collection[int]) -> Click:
        """Return the same row without its votes for some columns."""
        kept = tuple(column for column in self.columns if column not in columns)
        votes = {column: vote for column, vote in self.votes.items() if column not in columns}
        return replace(self, columns=kept, votes=votes or ALL_PLAIN)


class TrainedScale(NamedTuple):
    """A trained row, and for how many clicks a vote of weight 1 stands there."""

    row: int
    scale: float


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
        others = (bundle.posted, bundle.aliases, bundle.clicks)
        trained = [row for row in found if not any(_is_among(rows, row) for rows in others)]
        return {row: self.reduced.get(row) or _votes_in(bundle, row) for row in trained}

    def trained_scale(self, query: str, bundle: Bundle) -> TrainedScale | None:
        """Return the scale of the query's training row, the largest of several; None without."""
        scales = [
            TrainedScale(row, float(bundle.vote_clicks[row])) for row in self.trained(query, bundle)
        ]
        return max(scales, key=lambda one: (one.scale, -one.row), default=None)

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
    weights, hours = bundle.vote_weights[entries].tolist(), bundle.vote_hours[entries].tolist()
    votes = dict(zip(columns, map(Vote, weights, hours), strict=True))
    special = {column: vote for column, vote in votes.items() if vote != PLAIN}
    return Click(
        row=row,
        columns=tuple(columns),
        votes=special or ALL_PLAIN,
        scale=float(bundle.vote_clicks[row]),
        origin=-1 if _is_among(bundle.posted, row) else row,
    )


def _is_among(rows: Rows, row: int) -> bool:
    """Return whether a row is one of `rows`, which ascend."""
    place = int(np.searchsorted(rows, row))
    return place < len(rows) and bool(rows[place] == row)

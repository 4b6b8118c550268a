"""One version of the knowledge memory (Eq. 3 and 4 of RAE-XMC), as readers see it.

Rows keep their numbers: first the bundle's N instance rows, then its L label rows, then the rows
learned since, in the order of the log. Frozen segments are searched through their graphs; live rows
are searched exactly.

Shapes: B queries, b keys per query, n votes, N instances, L labels, d dimensions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import ClassVar

import numpy as np

from service.core.bundle.bundle import Bundle
from service.core.files.arrays import is_constant
from service.core.index.compaction import SegmentPlan
from service.core.index.found_rows import (
    nearest,
    nearest_sharing,
    one_similarity_per_key,
    pad,
    places_per_key,
)
from service.core.index.hubs import without_hubs
from service.core.index.key_parts import KeyShare, queue_for_part
from service.core.items.fusion import FusedQueries, fused
from service.core.items.item_memory import ItemMemory
from service.core.lexical.hybrid import Cosines, cosines_by, with_matches
from service.core.lexical.lexicon import NO_MATCH, Lexicon, Match, contained
from service.core.memory.label_table import LabelTable
from service.core.memory.part import (
    BaseRows,
    LearnedRows,
    RowPart,
    Votes,
    WeightedVotes,
    joined,
)
from service.core.memory.row_ownership import RowOwnership
from service.core.memory.rule_table import RuleTable
from service.core.memory.shards import EVERYTHING, FoundRows, KeySearch, Scope, ShardedKeys
from service.core.types import Bools, Doubles, Floats, Halves, Indices, RowKind, Rows

_NO_ROWS: Rows = np.zeros(0, np.int64)


@dataclass(frozen=True)
class HeldKeys:
    """Keys in this process: all, or those of a shard's `share`."""

    share: KeyShare | None = None
    held: ClassVar[bool] = True

    def search(self, view: View, wanted: KeySearch) -> FoundRows:
        """Search the bundle's rows and each part of the learned rows."""
        return FoundRows(*_nearest(view, wanted))

    def cosines(self, view: View, wanted: KeySearch, found: FoundRows) -> Cosines:
        """Return the cosines of any rows with the queries."""
        return cosines_by(view.vectors, wanted.queries)

    def vectors(self, view: View, rows: Rows) -> Halves:
        """Return the keys [n, d] of `rows` [n]."""
        vectors = np.empty((len(rows), view.bundle.keys.shape[1]), np.float16)
        for part, places in view.by_part(rows):
            vectors[places] = part.vectors(rows[places])
        return vectors


@dataclass(frozen=True, kw_only=True)
class View:
    """The memory at one version; nothing in it ever changes.

    `base` holds the bundle's rows, and `learned` those learned since. Only a bundle with an item
    memory has `items`. `keys` is where the keys of rows come from, and `scope` how the view was
    made from that of all labels.
    """

    version: int
    base: BaseRows
    learned: LearnedRows
    labels: LabelTable
    ownership: RowOwnership
    items: ItemMemory | None = None
    rules: RuleTable = field(default_factory=RuleTable)
    keys: HeldKeys | ShardedKeys = field(default_factory=HeldKeys)
    scope: Scope = EVERYTHING

    @property
    def bundle(self) -> Bundle:
        """The bundle that the memory started from."""
        return self.base.bundle

    @property
    def base_rows(self) -> int:
        """The number of the bundle's rows, N + L."""
        return self.base.count

    @property
    def parts(self) -> tuple[RowPart, ...]:
        """The parts of the rows learned since the bundle."""
        return self.learned.parts

    @property
    def next_row(self) -> int:
        """The number that the next learned row will get."""
        return self.parts[-1].stop if self.parts else self.base_rows

    @property
    def sealed_rows(self) -> int:
        """The number of rows in segments built since the bundle, including dead ones."""
        return self.learned.sealed_rows

    @property
    def live_rows(self) -> int:
        """The number of rows learned since the bundle, including sealed and dead ones."""
        return self.learned.stored_rows

    @property
    def live_bytes(self) -> int:
        """The estimated main memory of all rules, and of all else learned since the bundle."""
        of_items = 0 if self.items is None else self.items.live_bytes
        return self.labels.live_bytes + of_items + self.learned.stored_bytes + self.rules.size

    @property
    def dead_rows(self) -> int:
        """The number of rows that were replaced or deleted and are still stored."""
        return self.base.dead_rows + self.learned.dead_rows

    @property
    def rows(self) -> int:
        """The number of rows without a tombstone."""
        return self.base_rows + self.live_rows - self.dead_rows

    @property
    def dated(self) -> bool:
        """Whether a label or a rule has, or had, a date."""
        return self.labels.fields.dated or (self.has_rules and self.rules.dated)

    @property
    def has_hours(self) -> bool:
        """Whether a vote has, or had, a time from which it decays."""
        return self.base.has_hours or any(part.has_hours for part in self.parts)

    @property
    def filter_warnings(self) -> tuple[str, ...]:
        """Sentences about conditions of the view's filter that never hold."""
        return self.scope.warnings

    @property
    def has_rules(self) -> bool:
        """Whether there are rules, of any tenant."""
        return len(self.rules.rules) > 0

    def alive_rows(self) -> Rows:
        """Return the numbers of all rows without a tombstone, ascending."""
        parts = (part.alive_rows() for part in self.parts)
        return np.concatenate([self.base.alive_rows(), *parts])

    def unsealed_plans(self) -> Iterator[SegmentPlan]:
        """Yield the plans of learned rows whose segment is not attached yet."""
        return self.learned.unsealed_plans()

    def unsealed_item_plans(self) -> Iterator[SegmentPlan]:
        """Yield the plans of posted items whose index is not attached yet."""
        return iter(()) if self.items is None else self.items.unsealed_plans()

    def unbuilt_base_plan(self) -> SegmentPlan | None:
        """Return the plan of a graph over the bundle's rows that is not in use yet, or None."""
        plan, rebuilt = self.base.plan, self.base.rebuilt
        return None if rebuilt is not None and rebuilt[0] is plan else plan

    @property
    def built(self) -> bool:
        """Whether no plan lacks its segment; without one, its rows are found more slowly."""
        return next(self.all_unsealed(), None) is None

    def all_unsealed(self) -> Iterator[SegmentPlan]:
        """Yield all plans, of rows and of posted items, whose segment is not attached yet."""
        base = self.unbuilt_base_plan()
        return chain(
            () if base is None else (base,), self.unsealed_plans(), self.unsealed_item_plans()
        )

    def fused(self, queries: Floats, given: Sequence[Rows] | None = None) -> FusedQueries:
        """Fuse queries [n, d] with items like `fusion.fused`; without items they are unchanged."""
        if self.items is None:
            return FusedQueries(vectors=queries)
        return fused(self.items, queries, given)

    def retrieve(
        self,
        queries: Floats,
        *,
        depth: int,
        kind: RowKind | None = None,
        exact: bool = False,
    ) -> tuple[Floats, Rows]:
        """Find the `depth` nearest keys of each query [B, d].

        `kind` restricts the search to instances or to labels. `exact` scans all keys instead of
        walking through graphs. The rows of one key take at most `places_per_key` places. Returns
        similarities [B, b], descending, and row numbers [B, b]; row -1 fills missing places.
        """
        wanted = self.key_search(queries, depth=depth, kind=kind, exact=exact)
        return self.keys.search(self, wanted)[:2]

    def search(
        self,
        queries: Sequence[str],
        vectors: Floats,
        *,
        depth: int,
        kind: RowKind | None = None,
        exact: bool = False,
        words: float | None = None,
        covered: bool = False,
    ) -> FoundRows:
        """Find the rows that may vote for queries [B] with vectors [B, d], by both.

        `words` is what shared words add to the cosines of rows; with None, words add and find
        nothing. `covered` adds texts of labels that consist of words of the query. Returns what
        `retrieve` does, with the further rows that words find, and `MOST_COVERED` at most.
        Hubs come later than there if the bundle says so.
        """
        matches: list[Match] = []
        if words is not None or covered:
            matches = [self.matches(query, kind, words, covered=covered) for query in queries]
        named = [match.rows for match in matches]
        wanted = self.key_search(vectors, depth=depth, kind=kind, exact=exact, named=named)
        found = self.keys.search(self, wanted)
        similarities, rows = found.similarities, found.rows
        if matches:
            cosines = self.keys.cosines(self, wanted, found)
            similarities, rows = with_matches(similarities, rows, matches=matches, cosines=cosines)
        if self.bundle.has_hubs:
            similarities, rows = without_hubs(similarities, rows, self.penalties(rows))
        return FoundRows(similarities, rows, partial=found.partial)

    def answer(self, wanted: KeySearch) -> FoundRows:
        """Answer a front from a shard's view, which must be in the scope that is searched."""
        found = self.keys.search(self, wanted)
        cosines, cosines_of = [], self.keys.cosines(self, wanted, found)
        for place, rows in enumerate(wanted.named):
            own = np.full(len(rows), np.nan, np.float32)
            held = self.are_alive(rows)
            own[held] = cosines_of(place, rows[held])
            cosines.append(own)
        return FoundRows(found.similarities, found.rows, cosines)

    def key_search(
        self,
        queries: Floats,
        *,
        depth: int,
        kind: RowKind | None = None,
        exact: bool = False,
        named: Sequence[Rows] = (),
    ) -> KeySearch:
        """Return a search in this version for all that holds keys.

        The arguments are those of `retrieve`, and the rows `named` of each query.
        """
        return KeySearch(
            version=self.version,
            next_row=self.next_row,
            scope=self.scope,
            queries=queries,
            depth=depth,
            kind=kind,
            exact=exact,
            named=named,
        )

    def penalties(self, rows: Rows) -> Halves:
        """Return what is subtracted from the similarities of `rows`, [B, b] or [b].

        It is 0 for rows that were posted since the training.
        """
        subtracted = np.zeros(rows.shape, np.float16)
        if self.bundle.has_hubs:
            origins = self.origins(rows)
            of_base = origins >= 0
            subtracted[of_base] = self.bundle.hubs[origins[of_base]]
        return subtracted

    def matches(
        self, query: str, kind: RowKind | None, words: float | None, *, covered: bool = False
    ) -> Match:
        """Return the rows of a kind that words find, and what words add to the cosines of any rows.

        The arguments are those of `search`.
        """
        match = NO_MATCH
        if words is not None:
            found = self.lexicon.matches(query, share=words).adding(words)
            match = found.of_kind(kind, self.is_instance)
        if covered and (kind is not RowKind.INSTANCE or self.has_aliases):
            texts = self.covered_labels(query)
            if kind is not None:
                texts = texts[self.is_instance(texts) == (kind is RowKind.INSTANCE)]
            match = match.naming(texts)
        return match

    def covered_labels(self, query: str) -> Rows:
        """Return the texts and aliases of labels that consist of words of a query, as rows."""
        rows = self.lexicon.covered(query)
        return rows[self.is_text_of_label(rows)]

    def labels_with_words(self, text: str) -> LabelTable:
        """Return the table of the labels alone of which a text or alias has all words of `text`."""
        rows = self.lexicon.containing(text)
        columns, _ = self.votes(rows[self.is_text_of_label(rows)])
        found = np.zeros(self.labels.columns, bool)
        found[columns] = True
        return self.labels.only(found)

    def is_instance(self, rows: Rows) -> Bools:
        """Return which of `rows` [b] are instance rows."""
        instance = np.zeros(len(rows), bool)
        for part, places in self.by_part(rows):
            instance[places] = part.is_instance(rows[places])
        return instance

    @property
    def has_aliases(self) -> bool:
        """Whether a label has aliases, or a label of the bundle had some."""
        return len(self.bundle.aliases) > 0 or len(self.ownership.aliases) > 0

    def is_alias(self, rows: Rows) -> Bools:
        """Return which of `rows` [b] are aliases of labels; these are instance rows, too."""
        if not self.has_aliases:
            return np.zeros(len(rows), bool)
        aliases, learned = contained(rows, self.bundle.aliases), rows >= self.base_rows
        aliases[learned] = [row in self.ownership.aliases for row in rows[learned].tolist()]
        return aliases

    def is_text_of_label(self, rows: Rows) -> Bools:
        """Return which of `rows` [b] are the text or an alias of a label."""
        own = ~self.is_instance(rows)
        return own | self.is_alias(rows) if self.has_aliases else own

    def votes(self, rows: Rows) -> tuple[Indices, Rows]:
        """Return the columns [n] that `rows` [b] vote for, row after row, and each row's count [b].

        Votes for deleted labels are left out.
        """
        return self.timed_votes(rows)[:2]

    def weighted_votes(self, rows: Rows) -> WeightedVotes:
        """Return what `votes` returns, and the weight of each vote [n].

        Only votes of instances have weights; votes of labels weigh 1.
        """
        return self._weighted(self.timed_votes(rows))

    def timed_votes(self, rows: Rows) -> Votes:
        """Return what `weighted_votes` returns without decay, and the hours of the votes [n]."""
        casting, votes = self._cast(rows)
        if not self.labels.hides_votes:
            return votes
        kept = ~self.labels.is_deleted(votes.columns)
        counts = np.bincount(casting[kept], minlength=len(rows))
        return Votes(votes.columns[kept], counts, votes.weights[kept], votes.hours[kept])

    def learned_votes(self, rows: Rows) -> WeightedVotes:
        """Return the votes of the rows among `rows` [b] that were learned since the bundle.

        Returns the columns [n] that they vote for, row after row, the count of each such row, and
        the weight of each vote [n]. Votes for deleted labels are included.
        """
        return self._weighted(self._cast(rows[rows >= self.base_rows])[1])

    def masses(self, rows: Rows) -> Doubles:
        """Return how much `rows` [b] weigh as texts: the clicks for which their votes stand.

        Rows weigh 1 if neither the data nor posted clicks have weights.
        """
        masses, clicks = np.ones(len(rows)), self.bundle.vote_clicks
        for part, places in self.by_part(rows):
            votes = part.votes(rows[places])
            if is_constant(clicks) and part.are_plain(votes):
                continue
            voted = np.repeat(np.arange(len(places)), votes.counts)
            sums = np.bincount(voted, np.maximum(votes.weights, 0.0), minlength=len(places))
            masses[places] = np.where(sums > 0.0, sums, 1.0)
        origins = self.origins(rows)
        trained = (origins >= 0) & (origins < self.bundle.instances)
        masses[trained] *= clicks[origins[trained]]
        return masses

    def posted(self, rows: Rows) -> Bools:
        """Return which of `rows` [b] were posted since the training."""
        origins = self.origins(rows)
        return (origins < 0) | np.isin(origins, self.bundle.posted)

    def origins(self, rows: Rows) -> Rows:
        """Return the bundle's row that each of `rows` is, or replaces; `rows` have any shape.

        It is -1 for rows that were posted since the bundle, and for row -1.
        """
        origins = np.where(rows < self.base_rows, rows, -1)
        for part in self.parts:
            if part.posted is not None:
                inside = (rows >= part.first) & (rows < part.stop)
                origins[inside] = part.origins(rows[inside])
        return origins

    def are_alive(self, rows: Rows) -> Bools:
        """Return which of `rows` [b] have no tombstone."""
        alive = np.zeros(len(rows), bool)
        for part, places in self.by_part(rows):
            alive[places] = part.are_alive(rows[places])
        return alive

    def vectors(self, rows: Rows) -> Halves:
        """Return the keys [b, d] of `rows` [b]."""
        return self.keys.vectors(self, rows)

    def label_keys(self, columns: Rows) -> Halves:
        """Return the keys [k, d] of the texts of the labels at `columns` [k]."""
        rows, posted = columns + self.bundle.instances, self.ownership.label_rows
        for place, column in enumerate(columns.tolist() if len(posted) else ()):
            of_label = posted.get(column)
            if of_label is not None:
                rows[place] = of_label[0]  # a label's first row is that of its text
        return self.vectors(rows)

    @cached_property
    def lexicon(self) -> Lexicon:
        """The words of the texts of all alive rows, and behind them the encoder's dictionary."""
        parts = (self.base.words, *(part.words for part in self.parts))
        return Lexicon(parts=parts, dictionary=self.bundle.dictionary, masses=self.masses)

    def text(self, row: int) -> str:
        """Return the text that was encoded as the row's key."""
        if row < self.base_rows:
            return self.base.text(row)
        return next(part for part in self.parts if row < part.stop).text(row)

    def _weighted(self, votes: Votes) -> WeightedVotes:
        """Return votes with the weights that are left of them."""
        columns, counts, weights, hours = votes
        decay = self.scope.decay
        return columns, counts, weights if decay is None else decay.of(weights, hours)

    def _cast(self, rows: Rows) -> tuple[Rows, Votes]:
        """Return the votes of `rows` [b], also for deleted labels, and each vote's place in `rows`.

        The places [n] ascend.
        """
        found = [(places, part.votes(rows[places])) for part, places in self.by_part(rows)]
        if len(found) == 1:
            [(places, votes)] = found
            return np.repeat(places, votes.counts), votes
        votes = joined([of_part for _, of_part in found])
        casting = np.repeat(np.concatenate([_NO_ROWS, *(one for one, _ in found)]), votes.counts)
        order = np.argsort(casting, kind="stable")
        return casting[order], Votes(
            votes.columns[order],
            np.bincount(casting, minlength=len(rows)),
            votes.weights[order],
            votes.hours[order],
        )

    def by_part(self, rows: Rows) -> Iterator[tuple[BaseRows | RowPart, Rows]]:
        """Yield each part that holds some of `rows` [b], with their positions in `rows`."""
        places = np.flatnonzero(rows < self.base_rows)
        if len(places):
            yield self.base, places
        if len(places) == len(rows):
            return
        for part in self.parts:
            places = np.flatnonzero((rows >= part.first) & (rows < part.stop))
            if len(places):
                yield part, places


def _nearest(view: View, wanted: KeySearch) -> tuple[Floats, Rows]:
    """Return similarities [B, b] and rows of the nearest keys that this process holds."""
    queries, depth, kind = wanted.queries, wanted.depth, wanted.kind
    share, ef = places_per_key(depth), None if wanted.exact else view.bundle.manifest.index.ef
    if wanted.count is not None:
        ef = ef and queue_for_part(ef, wanted.count / depth)
        depth = wanted.count
    similarities, rows = view.base.search(queries, count=depth, ef=ef, kind=kind, share=share)
    if view.parts:
        # A part's row matters only if it beats the base's last row, -inf if that is missing.
        above = similarities[:, -1]
        results = [
            part.search(queries, count=depth, ef=ef, kind=kind, share=share, above=above)
            for part in view.parts
        ]
        similarities = np.hstack([similarities, *(found for found, _ in results)])
        rows = np.hstack([rows, *(found for _, found in results)])
    similarities = np.where(rows < 0, np.float32(-np.inf), similarities)
    if not view.parts:
        return pad(*nearest(similarities, rows, count=depth), count=depth)
    found = one_similarity_per_key(
        *nearest(similarities, rows, count=rows.shape[1]), share=share, vectors_of=view.vectors
    )
    return pad(*nearest_sharing(*found, count=depth, share=share), count=depth)

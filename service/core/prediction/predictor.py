"""Answers a query from one view: encode -> retrieve -> vote -> top-k (Alg. 1 of RAE-XMC).

A misspelled query is first read as it may be meant. If it has several readings, all of them are
searched, and the reading whose best label gets the most votes is answered. With an item memory, a
query's vector is fused with items between encoding and retrieval. The stages of `stages_of` then
change the ranking of the votes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, repeat
from operator import attrgetter
from threading import Lock
from typing import Any

import numpy as np
from cachetools import LRUCache

from service.core.encoding.encoder import Encoder
from service.core.errors import NotInBundle
from service.core.index.found_rows import pad
from service.core.items.fusion import FusedQueries, places_of
from service.core.lexical.lexicon import Match
from service.core.lexical.spelling import readings
from service.core.lexical.words import TypedQuery
from service.core.memory.shards import FoundRows
from service.core.memory.view import View
from service.core.prediction.confidence import Confidence, Confident, ConfidentEnough
from service.core.prediction.diversity import Diverse
from service.core.prediction.match_types import OfTypes
from service.core.prediction.pins import pinned_in
from service.core.prediction.ranking import (
    Ranker,
    Ranking,
    SearchedQuery,
    Stage,
    Stages,
    Stopwatch,
    Votes,
    places,
    ranked,
)
from service.core.prediction.reranking.reranker import Reranked, Reranker
from service.core.prediction.steering import (
    Only,
    Steering,
    Steerings,
    narrowed_by,
    only_passing,
)
from service.core.rules import Rule
from service.core.types import (
    Answer,
    Evidence,
    Floats,
    FusedItem,
    Indices,
    Keyword,
    Prediction,
    PredictOptions,
    Reading,
    Role,
    RowKind,
    Rows,
    ScoreKind,
)

EVIDENCE_ROWS = 10  # the most rows that explain one keyword
MOST_READ_AGAIN = 3  # times that a query is read for filters of rules; then it stays as typed
_DEEPER = 4  # times as many rows, if those found vote for too few labels


class QueryCache:
    """A cache of recently used vectors by text; threads may share it."""

    def __init__(self, entries: int) -> None:
        """Keep at most `entries` vectors; 0 keeps none."""
        self._vectors: LRUCache[str, Floats] = LRUCache(entries)
        self._lock = Lock()
        self.hits = 0
        self.misses = 0

    def fill(self, queries: Sequence[str], vectors: Floats) -> list[int]:
        """Copy known vectors into vectors [B, d]; return the positions of unknown queries."""
        missing = []
        with self._lock:
            for position, query in enumerate(queries):
                known = self._vectors.get(query)
                if known is None:
                    missing.append(position)
                else:
                    vectors[position] = known
            self.hits += len(queries) - len(missing)
            self.misses += len(missing)
        return missing

    def add(self, encoded: Mapping[str, Floats]) -> None:
        """Remember vectors [d] by text."""
        if self._vectors.maxsize == 0:
            return
        with self._lock:
            for text, vector in encoded.items():
                self._vectors[text] = vector


AttendedItems = tuple[FusedItem, ...] | None  # of one query, as in `Prediction`


Readings = tuple[Reading, ...]  # what one query may mean, at least one


def as_typed(query: str) -> Reading:
    """Return a query that is searched as it was typed."""
    return Reading(query=query, text=query)


def texts_of(readings: Sequence[Readings]) -> list[str]:
    """Return the texts [T] of all readings of queries [B], query by query."""
    return [reading.text for of_query in readings for reading in of_query]


@dataclass(frozen=True, kw_only=True, slots=True)
class Searched:
    """Queries as they were read [B], and what was found for them.

    Each has a vector [d], and the `similarities` and `rows` [b] of its keys. `places` [B] are those
    of the chosen readings among all readings.
    """

    readings: Sequence[Reading]
    vectors: Floats
    similarities: Floats
    rows: Rows
    places: Sequence[int]
    partial: bool = False  # a shard of the memory has not answered

    def part(self, queries: slice) -> Searched:
        """Return some of the queries."""
        return Searched(
            readings=self.readings[queries],
            vectors=self.vectors[queries],
            similarities=self.similarities[queries],
            rows=self.rows[queries],
            places=self.places[queries],
            partial=self.partial,
        )

    def queries(self, view: View, watch: Stopwatch) -> Iterator[SearchedQuery]:
        """Yield the queries one by one, as stages read them."""
        for reading, vector, similarities, rows in zip(
            self.readings, self.vectors, self.similarities, self.rows, strict=True
        ):
            if len(rows) and rows[-1] < 0:  # missing rows (-1) are at the end
                count = np.count_nonzero(rows >= 0)
                similarities, rows = similarities[:count], rows[:count]
            yield SearchedQuery(
                view=view,
                reading=reading,
                vector=vector,
                similarities=similarities,
                rows=rows,
                watch=watch,
            )

    def chosen(self, places: Sequence[int]) -> Searched:
        """Return the readings at `places`."""
        return Searched(
            readings=[self.readings[place] for place in places],
            vectors=self.vectors[places],
            similarities=self.similarities[places],
            rows=self.rows[places],
            places=places,
            partial=self.partial,
        )


class Predictor:
    """Answers queries from any view of the memory. Its only state is a cache of encoded queries."""

    def __init__(
        self,
        encoder: Encoder,
        *,
        tau: float,
        cache: QueryCache | None = None,
        reranker: Reranker | None = None,
        confidence: Mapping[ScoreKind, Confidence] | None = None,
        only: Only = only_passing,
    ) -> None:
        """Predict at temperature `tau`; `cache` keeps the vectors of recent queries.

        `reranker` and `confidence`, by kind of score, are the bundle's, if it has them. `only`
        applies the filters of rules. Raises `NotCompiled`.
        """
        self._encoder = encoder
        self._tau = tau
        self._cache = cache or QueryCache(0)
        self._ranker = Ranker()
        self._reranker, self._confidence = reranker, confidence or {}
        self._only, self._steerings = only, Steerings()

    def predict(self, view: View, queries: Sequence[str], options: PredictOptions) -> Answer:
        """Answer `queries` from `view`, with texts and, on request, evidence."""
        watch = Stopwatch()
        read = self.read(view, queries, options, watch)
        searched, items = self._searched(view, read, options, watch)
        with watch.stage("score"):
            predictions = self.predictions(view, searched, options, items, watch)
        return Answer(version=view.version, predictions=predictions, seconds=watch.seconds)

    def _searched(
        self,
        view: View,
        readings: Sequence[Readings],
        options: PredictOptions,
        watch: Stopwatch,
    ) -> tuple[Searched, Sequence[AttendedItems]]:
        """Encode, fuse and search queries; returns also the items of all readings."""
        fused = self.fuse(view, self.encode(texts_of(readings), watch), options, watch)
        with watch.stage("retrieve"):
            searched = self.search(view, readings, fused.vectors, options)
        return searched, explained_items(view, fused, options)

    def predictions(
        self,
        view: View,
        searched: Searched,
        options: PredictOptions,
        items: Sequence[AttendedItems],
        watch: Stopwatch,
    ) -> tuple[Prediction, ...]:
        """Return the keywords of queries from their retrieved keys.

        `items` of all readings come from `explained_items`. The stage "rerank" nests in the current
        stage.
        """
        predictions = []
        rankings = self.rank(view, searched, options, watch)
        for first, place, ranking in zip(searched.readings, searched.places, rankings, strict=True):
            reading, attended = as_answered(first, items[place], ranking)
            predictions.append(
                Prediction(
                    reading=reading,
                    keywords=self.keywords(view, reading, ranking, options),
                    items=attended,
                    score_kind=ranking.score_kind,
                    partial=searched.partial,
                    **explained_rules(view, ranking, options),
                )
            )
        return tuple(predictions)

    def read(
        self, view: View, queries: Sequence[str], options: PredictOptions, watch: Stopwatch
    ) -> list[Readings]:
        """Return what each query may mean, or the query itself if the options correct nothing."""
        if not options.spelling:
            return [(as_typed(query),) for query in queries]
        with watch.stage("spell"):
            return [readings(view.lexicon, query) for query in queries]

    def encode(self, queries: Sequence[str], watch: Stopwatch) -> Floats:
        """Return unit vectors [B, d] of queries, from the cache if it has them."""
        vectors = np.empty((len(queries), self._encoder.dimension), np.float32)
        missing = self._cache.fill(queries, vectors)
        if missing:
            texts = list(dict.fromkeys(queries[position] for position in missing))
            with watch.stage("tokenize"):
                tokens = self._encoder.tokenize(texts, role=Role.QUERY)
            with watch.stage("encode"):
                encoded = dict(zip(texts, self._encoder.embed(tokens), strict=True))
            for position in missing:
                vectors[position] = encoded[queries[position]]
            self._cache.add(encoded)
        return vectors

    def fuse(
        self, view: View, vectors: Floats, options: PredictOptions, watch: Stopwatch
    ) -> FusedQueries:
        """Return the vectors [B, d] to search: fused with items if `view` has an item memory.

        The items are the nearest, or those that the options name. Raises what `places_of` raises,
        and `NotInBundle` if the options name items but `view` has no item memory.
        """
        if view.items is None:
            if options.items is not None:
                raise NotInBundle("item memory", field="items")
            return FusedQueries(vectors=vectors)
        with watch.stage("fuse"):
            if options.items is None:
                return view.fused(vectors)
            return view.fused(vectors, [places_of(view.items, options.items)] * len(vectors))

    def search(
        self,
        view: View,
        readings: Sequence[Readings],
        vectors: Floats,
        options: PredictOptions,
    ) -> Searched:
        """Retrieve the keys that may vote for queries [B], and choose the reading of each.

        `vectors` [T, d] belong to the texts of all readings.
        """
        read = [reading for of_query in readings for reading in of_query]
        found = self._found(view, read, vectors, options, depth=options.depth)
        searched = Searched(
            readings=read,
            vectors=vectors,
            similarities=found.similarities,
            rows=found.rows,
            places=range(len(vectors)),
            partial=found.partial,
        )
        if len(readings) == len(vectors):
            return searched
        return searched.chosen(self._best_places(view, searched, map(len, readings), options))

    def _found(
        self,
        view: View,
        read: Sequence[Reading],
        vectors: Floats,
        options: PredictOptions,
        *,
        depth: int,
    ) -> FoundRows:
        """Return the similarities and rows of texts, [T, b] or more, that may vote for them.

        A search under a filter goes deeper until the rows vote for `top_k` labels: most of the
        nearest rows may be queries of few labels.
        """
        first = view.search(
            [reading.text for reading in read],
            vectors,
            depth=depth,
            kind=voting_kind(options.memorization),
            exact=options.exact,
            words=options.words,
            covered=options.match is not None and "broad" not in options.match,
        )
        similarities, rows = first.similarities, first.rows
        if view.labels.kept is None or depth >= view.rows:
            return first
        wanted = min(options.top_k, len(view.labels))
        short = [
            place
            for place, found in enumerate(rows)
            if np.count_nonzero(found >= 0) >= depth and not _vote_for(view, found, wanted)
        ]
        if not short:
            return first
        further = self._found(
            view,
            [read[place] for place in short],
            vectors[short],
            options,
            depth=min(_DEEPER * depth, view.rows),
        )
        width = max(rows.shape[1], further.rows.shape[1])
        similarities, rows = pad(similarities, rows, count=width)
        similarities[short], rows[short] = pad(further.similarities, further.rows, count=width)
        return FoundRows(similarities, rows, partial=first.partial or further.partial)

    def _best_places(
        self, view: View, searched: Searched, counts: Iterable[int], options: PredictOptions
    ) -> list[int]:
        """Return the place of each query's best reading; `counts` [B] are its readings.

        The best label of the best one gets the most votes; the first one wins ties.
        """
        votes, stages = self._votes(options), self.stages_of(options).of(OfTypes)
        queries, chosen, first = list(searched.queries(view, Stopwatch())), list[int](), 0
        for count in counts:
            scores = [0.0]
            if count > 1:
                rankings = [
                    ranked(votes, stages, query, 1) for query in queries[first : first + count]
                ]
                scores = [max(ranking.scores, default=0.0) for ranking in rankings]
            chosen.append(first + scores.index(max(scores)))
            first += count
        return chosen

    def rank(
        self, view: View, searched: Searched, options: PredictOptions, watch: Stopwatch
    ) -> Iterator[Ranking]:
        """Yield the best labels of each query. Rules of the view act on each query alone."""
        votes, stages = self._votes(options), self.stages_of(options)
        for query in searched.queries(view, watch):
            acting: Sequence[Rule] = ()
            if view.has_rules:
                acting = view.rules.acting_on(query.reading.query, query.reading.text)
            if acting:
                yield self._steered(query, acting, votes, stages, options)
            else:
                yield ranked(votes, stages.all, query, options.top_k)

    def _votes(self, options: PredictOptions) -> Votes:
        return Votes(self._ranker, tau=self._tau, memorization=options.memorization)

    def stages_of(self, options: PredictOptions) -> Stages:
        """Return the stages of a request, in order."""
        scoring, choosing = list[Stage](), list[Stage]()
        if options.match is not None:
            scoring.append(OfTypes(options.match))
        if self._reranker is not None and options.candidates:
            scoring.append(Reranked(self._reranker, options.candidates))
        if self._confidence:
            scoring.append(Confident(self._confidence))
        if options.min_confidence:
            choosing.append(ConfidentEnough(options.min_confidence))
        if options.diversity:
            choosing.append(Diverse(options.diversity))
        return Stages(scoring, choosing)

    def _steered(
        self,
        query: SearchedQuery,
        acting: Sequence[Rule],
        votes: Votes,
        stages: Stages,
        options: PredictOptions,
    ) -> Ranking:
        """Return the ranking of a query on which rules act."""
        top_k, without = options.top_k, tuple[int, ...]()
        if options.explain:
            without = tuple(ranked(votes, stages.all, query, top_k).columns)
        if any(rule.filter is not None for rule in acting):
            steering, query = self._narrowed(query, acting, options)
        else:
            steering = self._steerings.of(query.view, acting)
        steered, pinned = pinned_in(query, steering, stages, top_k)
        ranking = ranked(votes, pinned, steered, top_k)
        return ranking._replace(steering=replace(steering, without=without))

    def _narrowed(
        self, query: SearchedQuery, acting: Sequence[Rule], options: PredictOptions
    ) -> tuple[Steering, SearchedQuery]:
        """Read and search one query again among the labels that the filters of `acting` leave.

        So it is answered as with the same filters in the request. As it is then read, further rules
        may act, and others no longer.
        """
        view, asked, watch = query.view, query.reading.query, query.watch
        narrowed, attended = view, None
        filtering: dict[str, Rule] = {}
        turn = 0
        while new := {one.id: one for one in acting if one.filter and one.id not in filtering}:
            turn += 1
            filtering |= new
            narrowed = narrowed_by(view, filtering.values(), self._only)
            again = turn <= MOST_READ_AGAIN
            read = self.read(narrowed, [asked], options, watch) if again else [(as_typed(asked),)]
            searched, items = self._searched(narrowed, read, options, watch)
            attended = items[searched.places[0]]
            [query] = searched.queries(narrowed, watch)
            acting = view.rules.acting_on(asked, query.reading.text)
        rules = {rule.id: rule for rule in (*filtering.values(), *acting)}.values()
        steering = self._steerings.of(narrowed, sorted(rules, key=attrgetter("precedence")))
        return replace(steering, again=(query.reading, attended)), query

    def keywords(
        self, view: View, reading: Reading, ranking: Ranking, options: PredictOptions
    ) -> tuple[Keyword, ...]:
        """Return the labels of a ranking, with the fields that an answer shows."""
        query, pinned = TypedQuery(reading.text), ranking.pinned
        if ranking.steering is not None:
            view = ranking.steering.view
        explanations: Iterable[tuple[Evidence, ...]] = repeat(())
        if options.explain:
            kind = voting_kind(options.memorization)
            explanations = evidence(view, ranking, view.matches(reading.text, kind, options.words))
        keywords = []
        all_votes: Iterable[float | None] = ranking.votes or repeat(None)
        confidences: Iterable[float | None] = ranking.confidences or repeat(None)
        boosts: Iterable[float] = ranking.boosts or repeat(1.0)
        for column, score, votes, confidence, boost, explanation in zip(
            *(ranking.columns, ranking.scores, all_votes, confidences, boosts, explanations),
            strict=False,
        ):
            label_id, texts, novel, metadata = view.labels.shown_at(column)
            keywords.append(
                Keyword(
                    id=label_id,
                    text=texts[0],
                    score=score,
                    novel=novel,
                    match=query.match(*texts),
                    confidence=confidence,
                    metadata=metadata,
                    evidence=explanation,
                    votes=votes,
                    boost=boost,
                    pinned=column in pinned,
                )
            )
        return tuple(keywords)


def as_answered(
    reading: Reading, items: AttendedItems, ranking: Ranking
) -> tuple[Reading, AttendedItems]:
    """Return a query as it was answered: otherwise than first read if rules narrowed the view."""
    steering = ranking.steering
    return (reading, items) if steering is None or steering.again is None else steering.again


def explained_rules(view: View, ranking: Ranking, options: PredictOptions) -> dict[str, Any]:
    """Return the fields of a `Prediction` that explain rules."""
    steering = ranking.steering
    if steering is None or not options.explain:
        return {}
    return {
        "rules": tuple(rule.id for rule in steering.rules),
        "without_rules": tuple(map(view.labels.id_at, steering.without)),
    }


def _vote_for(view: View, rows: Rows, count: int) -> bool:
    """Return whether retrieved rows vote for `count` labels or more; row -1 is none."""
    rows = rows[rows >= 0]
    if np.count_nonzero(~view.is_instance(rows)) >= count:  # each label has one such row
        return True
    columns, _, weights = view.weighted_votes(rows)
    # A label with votes against it alone does not answer.
    return len(np.unique(columns[weights > 0])) >= count


def explained_items(
    view: View, fused: FusedQueries, options: PredictOptions
) -> Sequence[AttendedItems]:
    """Return the items that each of the fused texts attended to.

    They are None if the view has no item memory or no explanation was requested.
    """
    if not options.explain or view.items is None:
        return [None] * len(fused.vectors)
    return fused.items(view.items)


def voting_kind(memorization: float) -> RowKind | None:
    """Return the only kind of row that can vote, or None if both can (Eq. 8).

    At lambda = 0 the memory is a dual encoder over Z, at lambda = 1 a kNN classifier over X. Rows
    of the other block would use up the depth without voting, so they are not searched.
    """
    if memorization == 0.0:
        return RowKind.LABEL
    return RowKind.INSTANCE if memorization == 1.0 else None


def evidence(view: View, ranking: Ranking, match: Match) -> list[tuple[Evidence, ...]]:
    """Return the rows that voted for each of the k columns of a ranking, the heaviest first.

    `match` knows what words added to their similarities.

    If a row voted for several columns with the same weight, these share one `Evidence`.
    """
    by_weight = np.argsort(-ranking.weights, kind="stable")  # [b]
    rows, similarities = ranking.rows[by_weight], ranking.similarities[by_weight]
    labels, votes_per_key, vote_weights = view.weighted_votes(rows)
    key_of_vote = np.repeat(np.arange(len(rows)), votes_per_key)  # [v]
    weights = ranking.weights[by_weight][key_of_vote]  # [v]
    weighted = bool((vote_weights != 1.0).any())
    if weighted:
        # Votes now weigh differently from their keys, so they are sorted again, heaviest first.
        weights = weights * vote_weights
        heaviest = np.argsort(-np.abs(weights), kind="stable")
        labels, key_of_vote, weights = labels[heaviest], key_of_vote[heaviest], weights[heaviest]
    votes, counts = first_votes(labels, columns=ranking.columns)  # [n], [k]
    keys, weights = key_of_vote[votes], weights[votes]  # [n]
    equal = np.arange(len(keys)) if weighted else keys  # equal ones share an Evidence
    _, first, place = np.unique(equal, return_index=True, return_inverse=True)
    keys = keys[first]
    subtracted = view.penalties(rows[keys])
    added = match.added(rows[keys])
    shared = [
        Evidence(
            kind="alias" if is_alias else "instance" if is_instance else "label",
            text=view.text(row),
            similarity=similarity - words + hub,
            words=words,
            hub=hub,
            weight=weight,
        )
        for is_alias, is_instance, row, similarity, words, hub, weight in zip(
            view.is_alias(rows[keys]).tolist(),
            view.is_instance(rows[keys]).tolist(),
            rows[keys].tolist(),
            similarities[keys].tolist(),
            added.tolist(),
            subtracted.tolist(),
            weights[first].tolist(),
            strict=True,
        )
    ]
    explained = map(shared.__getitem__, place.tolist())
    return [tuple(islice(explained, count)) for count in counts]


def first_votes(labels: Indices, *, columns: Sequence[int]) -> tuple[Rows, list[int]]:
    """Return the first `EVIDENCE_ROWS` votes for each of `columns` [k], and their counts [k].

    `labels` [v] are the columns voted for. A vote is returned as its place in `labels`; places [n]
    are listed column by column.
    """
    column_of_vote = places(labels, among=columns)  # [v]
    voted = np.flatnonzero(column_of_vote >= 0)
    # Stable: the votes for one column keep their order.
    small = column_of_vote[voted].astype(np.min_scalar_type(len(columns)))  # small: faster to sort
    voted = voted[np.argsort(small, kind="stable")]
    counts = np.bincount(column_of_vote[voted], minlength=len(columns))  # [k]
    starts = np.repeat(np.cumsum(counts) - counts, counts)
    first = np.arange(len(voted)) - starts < EVIDENCE_ROWS
    return voted[first], np.minimum(counts, EVIDENCE_ROWS).tolist()

"""Answers queries: read -> encode -> items -> search -> vote -> top-k (Alg. 1 of RAE-XMC).

`read` says what a misspelled query may mean. `encode` makes the vectors of all readings. `searched`
applies the filters of rules, fuses the vectors with items, finds the keys that may vote, and
chooses the reading whose best label gets the most votes. `rank` counts the votes. The stages of
`stages_of` then change the ranking. HTTP, bulk, export and evaluation call the same four.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice, repeat
from operator import attrgetter
from threading import Lock

import numpy as np
from cachetools import LRUCache

from service.core.bundle.bundle import Bundle
from service.core.encoding.encoder import Encoder
from service.core.errors import NotInBundle
from service.core.index.found_rows import pad
from service.core.items.fusion import places_of
from service.core.lexical.lexicon import Match
from service.core.lexical.spelling import readings
from service.core.lexical.words import TypedQuery
from service.core.memory.shards import FoundRows
from service.core.memory.view import View
from service.core.prediction.confidence import (
    Confidence,
    Confident,
    ConfidentEnough,
    open_confidence,
)
from service.core.prediction.diversity import Diverse
from service.core.prediction.match_types import OfTypes
from service.core.prediction.pins import pinned_in
from service.core.prediction.ranking import (
    AttendedItems,
    Query,
    Ranker,
    Ranking,
    Stage,
    Stages,
    Stopwatch,
    Votes,
    places,
    ranked,
    searched_queries,
)
from service.core.prediction.reranking.reranker import Reranked, Reranker, open_reranker
from service.core.prediction.steering import Only, Steerings, narrowed_by, only_passing
from service.core.rules import Rule
from service.core.types import (
    Answer,
    Evidence,
    Floats,
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

    def known(self, texts: Sequence[str]) -> dict[str, Floats]:
        """Return the vectors [d] of those texts that are known."""
        found = {}
        with self._lock:
            for text in texts:
                if text in self._vectors:
                    found[text] = self._vectors[text]
                    self.hits += 1
                else:
                    self.misses += 1
        return found

    def add(self, encoded: Mapping[str, Floats]) -> None:
        """Remember vectors [d] by text."""
        if self._vectors.maxsize == 0:
            return
        with self._lock:
            for text, vector in encoded.items():
                self._vectors[text] = vector


Readings = tuple[Reading, ...]  # what one query may mean, at least one
Ranked = tuple[Query, Ranking]  # a query as it was answered, with its best labels


def as_typed(query: str) -> Reading:
    """Return a query that is searched as it was typed."""
    return Reading(query=query, text=query)


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

    @classmethod
    def of(
        cls,
        bundle: Bundle,
        encoder: Encoder,
        *,
        cache: QueryCache | None = None,
        only: Only = only_passing,
    ) -> Predictor:
        """Return a bundle's predictor with all that the bundle has; raises if that does not fit."""
        facts, reranker = bundle.manifest, open_reranker(bundle)
        return cls(
            encoder,
            tau=facts.predictor.tau,
            cache=cache,
            reranker=reranker,
            confidence=open_confidence(facts),
            only=only,
        )

    def predict(self, view: View, queries: Sequence[str], options: PredictOptions) -> Answer:
        """Answer `queries` from `view`, with texts and, on request, evidence."""
        watch = Stopwatch()
        read = self.read(view, queries, options, watch)
        searched = self.searched(view, read, self.encode(read, watch), options, watch)
        with watch.stage("score"):
            predictions = self.predictions(searched, options)
        return Answer(version=view.version, predictions=predictions, seconds=watch.seconds)

    def read(
        self, view: View, queries: Sequence[str], options: PredictOptions, watch: Stopwatch
    ) -> list[Readings]:
        """Return what each query may mean, or the query itself if the options correct nothing."""
        if not options.spelling:
            return [(as_typed(query),) for query in queries]
        with watch.stage("spell"):
            return [readings(view.lexicon, query) for query in queries]

    def encode(self, readings: Iterable[Readings], watch: Stopwatch) -> Mapping[str, Floats]:
        """Return the unit vectors [d] of all texts that queries may mean, by text.

        Those that the cache has are taken from there.
        """
        texts = [reading.text for of_query in readings for reading in of_query]
        vectors = self._cache.known(texts)
        missing = [text for text in dict.fromkeys(texts) if text not in vectors]
        if missing:
            with watch.stage("tokenize"):
                tokens = self._encoder.tokenize(missing, role=Role.QUERY)
            with watch.stage("encode"):
                encoded = dict(zip(missing, self._encoder.embed(tokens), strict=True))
            self._cache.add(encoded)
            vectors |= encoded
        return vectors

    def searched(
        self,
        view: View,
        readings: Sequence[Readings],
        vectors: Mapping[str, Floats],
        options: PredictOptions,
        watch: Stopwatch,
    ) -> Sequence[Query]:
        """Fuse queries [B] with items, find the keys that may vote, and choose the reading of each.

        `vectors` holds the vectors of all texts. A query with one reading is searched only among
        the labels that filters of rules leave. With `explain` it is searched among all first, to
        show the answer without rules. Raises what `places_of` raises, and `NotInBundle` if the
        options name items but `view` has no item memory.
        """
        narrowed: dict[int, Query] = {}
        others: list[list[Query]] = []
        for place, of_query in enumerate(readings):
            read = [Query.read(view, reading, watch) for reading in of_query]
            if len(read) == 1 and read[0].is_filtered and not options.explain:
                narrowed[place] = self._narrowed(read[0], options)
            else:
                others.append(read)
        found = iter(self._searched(others, vectors, options))
        places = range(len(readings))
        return [narrowed[place] if place in narrowed else next(found) for place in places]

    def _searched(
        self,
        read: Sequence[Sequence[Query]],
        vectors: Mapping[str, Floats],
        options: PredictOptions,
    ) -> Sequence[Query]:
        """Return the best reading of each query [B] of one view, with what was found for it."""
        if not read:
            return ()
        every = [query for of_query in read for query in of_query]  # [T]
        view, watch, texts = every[0].view, every[0].watch, [query.reading.text for query in every]
        encoded = np.array([vectors[text] for text in texts], np.float32)
        fused, items = _fused(view, encoded, options, watch)
        with watch.stage("retrieve"):
            found = retrieved(view, texts, fused, options, depth=options.depth)
            queries = list(searched_queries(every, fused, found, items))
            if len(queries) > len(read):
                queries = list(self._best_readings(iter(queries), map(len, read), options))
            return queries

    def _best_readings(
        self, queries: Iterator[Query], counts: Iterable[int], options: PredictOptions
    ) -> Iterator[Query]:
        """Yield each query's best reading; `counts` [B] are its readings among `queries` [T].

        The best label of the best one gets the most votes; the first one wins ties.
        """
        votes, stages = self._votes(options), self.stages_of(options).of(OfTypes)

        def most_votes(query: Query) -> float:
            return max(ranked(votes, stages, query, 1).scores, default=0.0)

        for count in counts:
            of_query = list(islice(queries, count))
            yield of_query[0] if count == 1 else max(of_query, key=most_votes)

    def rank(self, searched: Iterable[Query], options: PredictOptions) -> Iterator[Ranked]:
        """Yield the best labels of each query, as rules steer it."""
        votes, stages = self._votes(options), self.stages_of(options)
        for query in searched:
            if query.rules:
                yield self._steered(query, votes, stages, options)
            else:
                yield query, ranked(votes, stages.all, query, options.top_k)

    def _votes(self, options: PredictOptions) -> Votes:
        return Votes(self._ranker, tau=self._tau, memorization=options.memorization)

    def stages_of(self, options: PredictOptions) -> Stages:
        """Return the stages of a request, in order."""
        scoring: list[Stage] = []
        choosing: list[Stage] = []
        if options.match:
            scoring.append(OfTypes(options.match))
        if self._reranker and options.candidates:
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
        query: Query,
        votes: Votes,
        stages: Stages,
        options: PredictOptions,
    ) -> Ranked:
        """Return the ranking of a query on which rules act."""
        top_k = options.top_k
        without: Sequence[int] = ()
        if options.explain:
            without = ranked(votes, stages.all, query, top_k).columns
        if query.is_filtered:
            query = self._narrowed(query, options)
        steering = self._steerings.of(query.view, query.rules)
        steered, pinned = pinned_in(query, steering, stages, top_k)
        ranking = ranked(votes, pinned, steered, top_k)
        return query._replace(view=steering.view), ranking._replace(
            rules=query.rules if options.explain else (),
            pinned=frozenset(steering.pins.values()),
            without_rules=without,
        )

    def _narrowed(self, query: Query, options: PredictOptions) -> Query:
        """Read and search a query among the labels that the filters of its rules leave.

        So it is answered as with the same filters in the request. As it is then read, further rules
        may act, and others no longer. All that acted on one of its readings are its rules then.
        """
        view, asked, watch = query.view, query.reading.query, query.watch
        filtering: dict[str, Rule] = {}
        turn = 0
        while new := [one for one in query.rules if one.filter and one.id not in filtering]:
            turn += 1
            filtering |= {rule.id: rule for rule in new}
            narrowed = narrowed_by(view, filtering.values(), self._only)
            again = turn <= MOST_READ_AGAIN
            read = self.read(narrowed, [asked], options, watch) if again else [(as_typed(asked),)]
            own = [Query.read(narrowed, reading, watch) for reading in read[0]]
            [query] = self._searched([own], self.encode(read, watch), options)
        rules = {rule.id: rule for rule in (*filtering.values(), *query.rules)}.values()
        return query._replace(rules=sorted(rules, key=attrgetter("precedence")), narrowed=True)

    def predictions(
        self, searched: Iterable[Query], options: PredictOptions
    ) -> tuple[Prediction, ...]:
        """Return the keywords of queries; the stage "rerank" nests in the current stage."""
        return tuple(prediction(*one, options) for one in self.rank(searched, options))


def prediction(query: Query, ranking: Ranking, options: PredictOptions) -> Prediction:
    """Return the labels of a ranking, and what explains them if the options ask for that."""
    return Prediction(
        reading=query.reading,
        keywords=keywords(query, ranking, options),
        items=query.items,
        score_kind=ranking.score_kind,
        partial=query.partial,
        rules=tuple(rule.id for rule in ranking.rules),
        without_rules=tuple(map(query.view.labels.id_at, ranking.without_rules)),
    )


def keywords(query: Query, ranking: Ranking, options: PredictOptions) -> tuple[Keyword, ...]:
    """Return the labels of a ranking, with the fields that an answer shows."""
    view, text = query.view, query.reading.text
    explanations: Iterable[tuple[Evidence, ...]] = repeat(())
    if options.explain:
        kind = voting_kind(options.memorization)
        explanations = evidence(view, ranking, view.matches(text, kind, options.words))
    typed = TypedQuery(text)
    found: list[Keyword] = []
    all_votes: Iterable[float | None] = ranking.votes or repeat(None)
    confidences: Iterable[float | None] = ranking.confidences or repeat(None)
    boosts: Iterable[float] = ranking.boosts or repeat(1.0)
    for column, score, votes, confidence, boost, explanation in zip(
        *(ranking.columns, ranking.scores, all_votes, confidences, boosts, explanations),
        strict=False,
    ):
        label_id, texts, novel, metadata = view.labels.shown_at(column)
        found.append(
            Keyword(
                id=label_id,
                text=texts[0],
                score=score,
                novel=novel,
                match=typed.match(*texts),
                confidence=confidence,
                metadata=metadata,
                evidence=explanation,
                votes=votes,
                boost=boost,
                pinned=column in ranking.pinned,
            )
        )
    return tuple(found)


def retrieved(
    view: View, texts: Sequence[str], vectors: Floats, options: PredictOptions, *, depth: int
) -> FoundRows:
    """Return the similarities and rows of texts, [T, b] or more, that may vote for them.

    A search under a filter goes deeper until the rows vote for `top_k` labels: most of the
    nearest rows may be queries of few labels.
    """
    first = view.search(
        texts,
        vectors,
        depth=depth,
        kind=voting_kind(options.memorization),
        exact=options.exact,
        words=options.words,
        covered=options.match is not None and "broad" not in options.match,
    )
    similarities, rows = first.similarities, first.rows
    if not view.labels.kept or depth >= view.rows:
        return first
    wanted = min(options.top_k, len(view.labels))
    short = [
        place
        for place, found in enumerate(rows)
        if np.count_nonzero(found >= 0) >= depth and not _vote_for(view, found, wanted)
    ]
    if not short:
        return first
    deeper = min(_DEEPER * depth, view.rows)
    of_short = [texts[place] for place in short]
    further = retrieved(view, of_short, vectors[short], options, depth=deeper)
    width = max(rows.shape[1], further.rows.shape[1])
    similarities, rows = pad(similarities, rows, count=width)
    similarities[short], rows[short] = pad(further.similarities, further.rows, count=width)
    return FoundRows(similarities, rows, partial=first.partial or further.partial)


def _vote_for(view: View, rows: Rows, count: int) -> bool:
    """Return whether retrieved rows vote for `count` labels or more; row -1 is none."""
    rows = rows[rows >= 0]
    if np.count_nonzero(~view.is_instance(rows)) >= count:  # each label has one such row
        return True
    columns, _, weights = view.weighted_votes(rows)
    # A label with votes against it alone does not answer.
    return len(np.unique(columns[weights > 0])) >= count


def _fused(
    view: View, vectors: Floats, options: PredictOptions, watch: Stopwatch
) -> tuple[Floats, Iterable[AttendedItems]]:
    """Return the vectors [T, d] to search, and the items that each attends to if explained.

    They are unchanged if `view` has no item memory. Otherwise they are fused with the nearest
    items, or with those that the options name.
    """
    if view.items is None:
        if options.items is not None:
            raise NotInBundle("item memory", field="items")
        return vectors, repeat(None)
    with watch.stage("fuse"):
        given = None
        if options.items is not None:
            given = [places_of(view.items, options.items)] * len(vectors)
        fused = view.fused(vectors, given)
    return fused.vectors, fused.items(view.items) if options.explain else repeat(None)


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

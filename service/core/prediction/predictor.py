"""A query's way from one view: encode -> retrieve -> vote -> top-k (Alg. 1 of RAE-XMC).

With an item memory, a query's vector is fused with items between encoding and retrieval. With a
second ranking, the best labels are ranked again by trees.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import repeat
from time import perf_counter

import numpy as np

from service.core.encoding.encoder import Encoder
from service.core.errors import NotInBundle
from service.core.items.fused_queries import FusedQueries
from service.core.items.named_items import places_of
from service.core.memory.view import View
from service.core.prediction.evidence import evidence
from service.core.prediction.query_cache import QueryCache
from service.core.prediction.ranking import Ranker, Ranking, open_ranker
from service.core.prediction.reranking.reranker import Reranker
from service.core.types import (
    Answer,
    Floats,
    FusedItem,
    Keyword,
    Prediction,
    PredictOptions,
    Role,
    RowKind,
    Rows,
)

AttendedItems = tuple[FusedItem, ...] | None  # of one query, as `Prediction` holds them


class Stopwatch:
    """Seconds by stage."""

    def __init__(self) -> None:
        """Start empty."""
        self.seconds: dict[str, float] = {}
        self._within = 0.0  # seconds of stages within the present one

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time a block under `name`, without the stages within it."""
        start, before, self._within = perf_counter(), self._within, 0.0
        try:
            yield
        finally:
            seconds = perf_counter() - start
            self.seconds[name] = self.seconds.get(name, 0.0) + seconds - self._within
            self._within = before + seconds


@dataclass(frozen=True, kw_only=True, slots=True)
class Searched:
    """Queries [B], the vectors [B, d] that were searched for them, and what was retrieved.

    `similarities` and `rows` [B, b] are those of `View.retrieve`.
    """

    queries: Sequence[str]
    vectors: Floats
    similarities: Floats
    rows: Rows

    def part(self, queries: slice) -> Searched:
        """Some of the queries."""
        return Searched(
            queries=self.queries[queries],
            vectors=self.vectors[queries],
            similarities=self.similarities[queries],
            rows=self.rows[queries],
        )


class Predictor:
    """Answers queries from any view of the memory; holds no state but a cache of encoded texts."""

    def __init__(
        self,
        encoder: Encoder,
        *,
        tau: float,
        cache: QueryCache | None = None,
        ranker: Ranker | None = None,
        reranker: Reranker | None = None,
    ) -> None:
        """Predict at temperature `tau`; `cache` keeps the vectors of recent queries.

        `ranker` counts the votes of retrieved keys, by default in compiled code if it was built.
        `reranker` is the second ranking of a bundle that has one.
        """
        self._encoder = encoder
        self._tau = tau
        self._cache = cache or QueryCache(0)
        self._ranker = ranker or open_ranker()
        self._reranker = reranker

    def predict(self, view: View, queries: Sequence[str], options: PredictOptions) -> Answer:
        """Answer `queries` from `view`, with texts and, on request, evidence."""
        watch = Stopwatch()
        vectors = self.encode(queries, watch)
        return self.answer(view, queries, vectors, options, watch)

    def answer(
        self,
        view: View,
        queries: Sequence[str],
        vectors: Floats,
        options: PredictOptions,
        watch: Stopwatch,
    ) -> Answer:
        """Answer encoded queries [B, d]; `watch` may hold the seconds of their encoding."""
        fused = self.fuse(view, vectors, options, watch)
        with watch.stage("retrieve"):
            searched = self.search(view, queries, fused.vectors, options)
        with watch.stage("score"):
            items = explained_items(view, fused, options)
            predictions = self.predictions(view, searched, options, items, watch)
        return Answer(version=view.version, predictions=predictions, seconds=watch.seconds)

    def predictions(
        self,
        view: View,
        searched: Searched,
        options: PredictOptions,
        items: Sequence[AttendedItems],
        watch: Stopwatch,
    ) -> tuple[Prediction, ...]:
        """The keywords of queries from their retrieved keys.

        `items` [B] are those of `explained_items`. Times the stage "rerank" within the present one.
        """
        rankings = self.rank(view, searched, options, watch)
        return tuple(
            Prediction(query=query, keywords=self.keywords(view, ranking, options), items=attended)
            for query, ranking, attended in zip(searched.queries, rankings, items, strict=True)
        )

    def encode(self, queries: Sequence[str], watch: Stopwatch) -> Floats:
        """Unit vectors [B, d] of queries, from the cache where it has them."""
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
        """The vectors [B, d] that are searched: fused with items, if `view` has an item memory.

        The items are the nearest, or those of the options. Raises `NotInBundle` for the latter
        where `view` has no item memory, and as `places_of`.
        """
        if view.items is None:
            if options.items is not None:
                raise NotInBundle("item memory", field="items")
            return FusedQueries(vectors=vectors)
        with watch.stage("fuse"):
            if options.items is None:
                return view.fused(vectors)
            return view.fused(vectors, [places_of(view.items, options.items)] * len(vectors))

    def retrieve(self, view: View, vectors: Floats, options: PredictOptions) -> tuple[Floats, Rows]:
        """The keys that may vote for encoded queries [B, d]: similarities and rows, [B, b]."""
        return view.retrieve(
            vectors,
            depth=options.depth,
            kind=voting_kind(options.memorization),
            exact=options.exact,
        )

    def search(
        self, view: View, queries: Sequence[str], vectors: Floats, options: PredictOptions
    ) -> Searched:
        """The queries [B] with their vectors [B, d] and what `retrieve` returns."""
        similarities, rows = self.retrieve(view, vectors, options)
        return Searched(queries=queries, vectors=vectors, similarities=similarities, rows=rows)

    def rank(
        self, view: View, searched: Searched, options: PredictOptions, watch: Stopwatch
    ) -> Iterator[Ranking]:
        """The best labels of each query: by their votes, or by the second ranking on request."""
        retrieved, top_k = (searched.similarities, searched.rows), options.top_k
        reranker = self._reranker
        if reranker is None or not options.candidates:
            yield from self.vote(view, retrieved, options)
            return
        first = self.vote(view, retrieved, replace(options, top_k=max(top_k, options.candidates)))
        for query, vector, ranking in zip(searched.queries, searched.vectors, first, strict=True):
            with watch.stage("rerank"):
                ranking = reranker.rerank(view, query, vector, ranking, top_k=top_k)
            yield ranking

    def vote(
        self, view: View, retrieved: tuple[Floats, Rows], options: PredictOptions
    ) -> Iterator[Ranking]:
        """The best labels of each query by the votes of its retrieved keys."""
        for similarities, rows in zip(*retrieved, strict=True):
            if len(rows) and rows[-1] < 0:  # places without a row are the last
                count = np.count_nonzero(rows >= 0)
                similarities, rows = similarities[:count], rows[:count]
            yield self._ranker.rank(
                view, rows=rows, similarities=similarities, tau=self._tau, options=options
            )

    def keywords(
        self, view: View, ranking: Ranking, options: PredictOptions
    ) -> tuple[Keyword, ...]:
        """The labels of a ranking with what an answer shows of them."""
        explanations = evidence(view, ranking) if options.explain else repeat(())
        keywords = []
        all_votes: Iterable[float | None] = ranking.votes or repeat(None)
        for column, score, votes, explanation in zip(
            ranking.columns, ranking.scores, all_votes, explanations, strict=False
        ):
            label_id, text, novel, metadata = view.labels.shown_at(column)
            keywords.append(
                Keyword(
                    id=label_id,
                    text=text,
                    score=score,
                    novel=novel,
                    metadata=metadata,
                    evidence=explanation,
                    votes=votes,
                )
            )
        return tuple(keywords)


def explained_items(
    view: View, fused: FusedQueries, options: PredictOptions
) -> Sequence[AttendedItems]:
    """The items [B] that each query attended to; None for each that is not to be explained.

    None, too, for a view without an item memory.
    """
    if not options.explain or view.items is None:
        return [None] * len(fused.vectors)
    return fused.items(view.items)


def voting_kind(memorization: float) -> RowKind | None:
    """The only kind of row that can vote, if there is only one (Eq. 8).

    At lambda = 0 the memory is a dual encoder over Z, at lambda = 1 a kNN classifier over X: rows
    of the other block would fill the depth without a vote, so they are not searched.
    """
    if memorization == 0.0:
        return RowKind.LABEL
    return RowKind.INSTANCE if memorization == 1.0 else None

"""A query's way from one view: encode -> retrieve -> vote -> top-k (Alg. 1 of RAE-XMC)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter

import numpy as np

from service.core.encoding.encoder import Encoder
from service.core.memory.view import View
from service.core.prediction.query_cache import QueryCache
from service.core.prediction.scoring import (
    best_candidates,
    predictive_scores,
    retriever_distribution,
    value_weights,
)
from service.core.types import (
    Answer,
    Doubles,
    Evidence,
    Floats,
    Indices,
    Keyword,
    Prediction,
    PredictOptions,
    Role,
    RowKind,
    Rows,
)

EVIDENCE_ROWS = 10  # the most that one keyword's explanation lists


@dataclass(frozen=True, kw_only=True, slots=True)
class Ranking:
    """The best labels of one query, descending by score, ties in order of label id.

    `columns` [k] of V with `scores` [k]; `rows` [b], `similarities` [b] and `weights` [b] (Eq. 4
    applied) are the keys that voted.
    """

    columns: Indices
    scores: Doubles
    rows: Rows
    similarities: Floats
    weights: Doubles


class Stopwatch:
    """Seconds by stage."""

    def __init__(self) -> None:
        """Start empty."""
        self.seconds: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time a block under `name`."""
        start = perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + perf_counter() - start


class Predictor:
    """Answers queries from any view of the memory; holds no state but a cache of encoded texts."""

    def __init__(
        self,
        encoder: Encoder,
        *,
        tau: float,
        cache: QueryCache | None = None,
    ) -> None:
        """Predict at temperature `tau`; `cache` keeps the vectors of recent queries."""
        self._encoder = encoder
        self._tau = tau
        self._cache = cache or QueryCache(0)

    def predict(self, view: View, queries: Sequence[str], options: PredictOptions) -> Answer:
        """Answer `queries` from `view`, with texts and, on request, evidence."""
        watch = Stopwatch()
        vectors = self.encode(queries, watch)
        with watch.stage("retrieve"):
            retrieved = self.retrieve(view, vectors, options)
        with watch.stage("score"):
            rankings = self.vote(view, retrieved, options)
            predictions = tuple(
                Prediction(query=query, keywords=self._keywords(view, ranking, options))
                for query, ranking in zip(queries, rankings, strict=True)
            )
        return Answer(version=view.version, predictions=predictions, seconds=watch.seconds)

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

    def retrieve(self, view: View, vectors: Floats, options: PredictOptions) -> tuple[Floats, Rows]:
        """The keys that may vote for encoded queries [B, d]: similarities and rows, [B, b]."""
        return view.retrieve(
            vectors,
            depth=options.depth,
            kind=voting_kind(options.memorization),
            exact=options.exact,
        )

    def vote(
        self, view: View, retrieved: tuple[Floats, Rows], options: PredictOptions
    ) -> Iterator[Ranking]:
        """The best labels of each query from its retrieved keys."""
        for similarities, rows in zip(*retrieved, strict=True):
            found = rows >= 0
            yield self._ranking(view, similarities[found], rows[found], options)

    def _ranking(
        self, view: View, similarities: Floats, rows: Rows, options: PredictOptions
    ) -> Ranking:
        distribution = retriever_distribution(similarities=similarities, tau=self._tau)
        is_instance = view.is_instance(rows)
        columns, votes_per_key = view.votes(rows)
        weights = value_weights(
            weights=distribution, is_instance=is_instance, memorization=options.memorization
        )
        columns, scores = predictive_scores(
            weights=weights, labels=columns, votes_per_key=votes_per_key
        )
        best = best_candidates(scores=scores, top_k=options.top_k)
        ordered = sorted(
            zip(columns[best].tolist(), scores[best].tolist(), strict=True),
            key=lambda candidate: (-candidate[1], view.labels.id_at(candidate[0])),
        )[: options.top_k]
        return Ranking(
            columns=np.array([column for column, _ in ordered], np.int32),
            scores=np.array([score for _, score in ordered], np.float64),
            rows=rows,
            similarities=similarities,
            weights=weights,
        )

    def _keywords(
        self, view: View, ranking: Ranking, options: PredictOptions
    ) -> tuple[Keyword, ...]:
        keywords = []
        for column, score in zip(ranking.columns.tolist(), ranking.scores.tolist(), strict=True):
            label = view.labels.at(column)
            keywords.append(
                Keyword(
                    id=label.id,
                    text=label.text,
                    score=score,
                    novel=label.novel,
                    metadata=label.metadata,
                    evidence=evidence(view, ranking, column) if options.explain else (),
                )
            )
        return tuple(keywords)


def voting_kind(memorization: float) -> RowKind | None:
    """The only kind of row that can vote, if there is only one (Eq. 8).

    At lambda = 0 the memory is a dual encoder over Z, at lambda = 1 a kNN classifier over X: rows
    of the other block would fill the depth without a vote, so they are not searched.
    """
    if memorization == 0.0:
        return RowKind.LABEL
    return RowKind.INSTANCE if memorization == 1.0 else None


def evidence(view: View, ranking: Ranking, column: int) -> tuple[Evidence, ...]:
    """The rows that voted for a column, the heaviest first."""
    columns, votes_per_key = view.votes(ranking.rows)
    key_of_vote = np.repeat(np.arange(len(ranking.rows)), votes_per_key)
    keys = key_of_vote[columns == column]
    keys = keys[np.argsort(-ranking.weights[keys], kind="stable")][:EVIDENCE_ROWS]
    is_instance = view.is_instance(ranking.rows[keys])
    return tuple(
        Evidence(
            kind=RowKind.INSTANCE if instance else RowKind.LABEL,
            text=view.text(int(ranking.rows[key])),
            similarity=float(ranking.similarities[key]),
            weight=float(ranking.weights[key]),
        )
        for key, instance in zip(keys.tolist(), is_instance.tolist(), strict=True)
    )

"""Answers many queries in one thread, with the predictor and the memory that a service has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from service.core.index.faiss_hnsw import search_in_one_thread
from service.core.index.protocol import batches
from service.core.memory.view import View
from service.core.prediction.predictor import (
    AttendedItems,
    Predictor,
    Stopwatch,
    explained_items,
)
from service.core.prediction.ranking import Ranking
from service.core.types import Prediction, PredictOptions
from service.engine.loaded_bundle import LoadedBundle
from service.http.answers import KeywordAnswer, ResultAnswer
from service.http.responses import result_answer

_SEARCHED_TOGETHER = 256  # queries


def answer(
    loaded: LoadedBundle, queries: Sequence[str], options: PredictOptions
) -> Mapping[str, Prediction]:
    """The prediction of each different query, bit for bit that of `POST /predict`.

    All are encoded together, sorted by length; a graph whose vectors depend on their batch encodes
    them one by one, as in the service. Each thread that answers calls this by itself.
    """
    predictor, view = loaded.predictor, loaded.memory.view
    return {
        query: Prediction(
            query=query, keywords=predictor.keywords(view, ranking, options), items=items
        )
        for query, ranking, items in _rankings(predictor, view, queries, options)
    }


def results(
    loaded: LoadedBundle, queries: Sequence[str], options: PredictOptions
) -> Mapping[str, ResultAnswer]:
    """What `POST /predict` has under `results` for each different query, as `answer` predicts it.

    Without evidence they are made from ids and scores: a `Keyword` for each takes twice the time.
    """
    predictor, view = loaded.predictor, loaded.memory.view

    def explained(query: str, ranking: Ranking, items: AttendedItems) -> ResultAnswer:
        keywords = predictor.keywords(view, ranking, options)
        return result_answer(Prediction(query=query, keywords=keywords, items=items), explain=True)

    def plain(query: str, ranking: Ranking, _items: AttendedItems) -> ResultAnswer:
        return {"query": query, "keywords": _keywords(view, ranking)}

    result = explained if options.explain else plain
    return {
        query: result(query, ranking, items)
        for query, ranking, items in _rankings(predictor, view, queries, options)
    }


def _rankings(
    predictor: Predictor, view: View, queries: Sequence[str], options: PredictOptions
) -> Iterator[tuple[str, Ranking, AttendedItems]]:
    """The ranking of each different query, and its items where they are to be explained."""
    search_in_one_thread()
    distinct = list(dict.fromkeys(queries))
    vectors = predictor.encode(distinct, Stopwatch())
    for batch in batches(len(distinct), _SEARCHED_TOGETHER):
        fused = predictor.fuse(view, vectors[batch], options, Stopwatch())
        retrieved = predictor.retrieve(view, fused.vectors, options)
        yield from zip(
            distinct[batch],
            predictor.vote(view, retrieved, options),
            explained_items(view, fused, options),
            strict=True,
        )


def _keywords(view: View, ranking: Ranking) -> list[KeywordAnswer]:
    keywords: list[KeywordAnswer] = []
    for column, score in zip(ranking.columns, ranking.scores, strict=True):
        label_id, text, novel, _ = view.labels.shown_at(column)
        keywords.append({"id": label_id, "text": text, "score": score, "novel": novel})
    return keywords

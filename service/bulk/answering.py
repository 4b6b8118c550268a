"""Answers many queries in one thread, with the predictor and the memory that a service has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from service.bulk.query_file import FileQuery
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
from service.core.types import Floats, Prediction, PredictOptions
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
    plain = [FileQuery(text=query) for query in queries]
    return {
        query.text: Prediction(
            query=query.text, keywords=predictor.keywords(view, ranking, options), items=items
        )
        for query, ranking, items in _rankings(predictor, view, plain, options)
    }


def results(
    loaded: LoadedBundle, queries: Sequence[FileQuery], options: PredictOptions
) -> Mapping[FileQuery, ResultAnswer]:
    """What `POST /predict` has under `results` for each different query, as `answer` predicts it.

    A query attends to the items that it names; raises `InvalidInput` for one that no item has.

    Without evidence they are made from ids and scores: a `Keyword` for each takes twice the time.
    """
    predictor, view = loaded.predictor, loaded.memory.view

    def explained(text: str, ranking: Ranking, items: AttendedItems) -> ResultAnswer:
        keywords = predictor.keywords(view, ranking, options)
        return result_answer(Prediction(query=text, keywords=keywords, items=items), explain=True)

    def plain(text: str, ranking: Ranking, _items: AttendedItems) -> ResultAnswer:
        return {"query": text, "keywords": _keywords(view, ranking)}

    result = explained if options.explain else plain
    return {
        query: result(query.text, ranking, items)
        for query, ranking, items in _rankings(predictor, view, queries, options)
    }


def _rankings(
    predictor: Predictor, view: View, queries: Sequence[FileQuery], options: PredictOptions
) -> Iterator[tuple[FileQuery, Ranking, AttendedItems]]:
    """The ranking of each different query, and its items where they are to be explained."""
    search_in_one_thread()
    distinct = list(dict.fromkeys(queries))
    vectors = predictor.encode([query.text for query in distinct], Stopwatch())
    for batch in batches(len(distinct), _SEARCHED_TOGETHER):
        searched, items = _fused(predictor, view, distinct[batch], vectors[batch], options)
        texts = [query.text for query in distinct[batch]]
        found = predictor.search(view, texts, searched, options)
        rankings = predictor.rank(view, found, options, Stopwatch())
        yield from zip(distinct[batch], rankings, items, strict=True)


def _fused(
    predictor: Predictor,
    view: View,
    queries: Sequence[FileQuery],
    vectors: Floats,
    options: PredictOptions,
) -> tuple[Floats, list[AttendedItems]]:
    """The vectors [n, d] that are searched: those of `queries`, each fused with its own items.

    The items [n] are those of `explained_items`.
    """
    places: dict[tuple[str, ...] | None, list[int]] = {}
    for place, query in enumerate(queries):
        places.setdefault(query.items, []).append(place)
    searched = np.empty_like(vectors)
    attended: list[AttendedItems] = [None] * len(queries)
    for items, alike in places.items():
        fused = predictor.fuse(view, vectors[alike], replace(options, items=items), Stopwatch())
        searched[alike] = fused.vectors
        for place, of_query in zip(alike, explained_items(view, fused, options), strict=True):
            attended[place] = of_query
    return searched, attended


def _keywords(view: View, ranking: Ranking) -> list[KeywordAnswer]:
    keywords: list[KeywordAnswer] = []
    for column, score in zip(ranking.columns, ranking.scores, strict=True):
        label_id, text, novel, _ = view.labels.shown_at(column)
        keywords.append({"id": label_id, "text": text, "score": score, "novel": novel})
    return keywords

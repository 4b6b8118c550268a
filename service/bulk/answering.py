"""Answers many queries in one thread, with a service's predictor and memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from service.bulk.query_file import FileQuery
from service.core.index.faiss_hnsw import search_in_one_thread
from service.core.index.protocol import batches
from service.core.memory.view import View
from service.core.prediction.predictor import AttendedItems, Predictor, Stopwatch, explained_items
from service.core.prediction.ranking import Ranking
from service.core.types import Floats, Prediction, PredictOptions
from service.engine.loaded_bundle import LoadedBundle
from service.http.answers import KeywordAnswer, ResultAnswer
from service.http.responses import result_answer

_SEARCHED_TOGETHER = 256  # queries per search


def results(
    loaded: LoadedBundle, queries: Sequence[FileQuery], options: PredictOptions
) -> Mapping[FileQuery, ResultAnswer]:
    """Answer each distinct query, with results bit-identical to those of `POST /predict`.

    A query attends to the items that it names. Raises `InvalidInput` for an unknown item. Every
    answering thread calls this.

    All queries are encoded together, sorted by length. An encoder whose vectors depend on the batch
    encodes them one by one, as in the service. Without evidence, answers are made from ids and
    scores: creating `Keyword` objects takes twice the time.
    """
    predictor, view = loaded.predictor, loaded.memory.view

    def explained(text: str, ranking: Ranking, items: AttendedItems) -> ResultAnswer:
        keywords = predictor.keywords(view, ranking, options)
        prediction = Prediction(
            query=text, keywords=keywords, items=items, score_kind=ranking.score_kind
        )
        return result_answer(prediction, explain=True)

    def plain(text: str, ranking: Ranking, _items: AttendedItems) -> ResultAnswer:
        return {
            "query": text,
            "score_kind": ranking.score_kind,
            "keywords": _keywords(view, ranking),
        }

    result = explained if options.explain else plain
    return {
        query: result(query.text, ranking, items)
        for query, ranking, items in _rankings(predictor, view, queries, options)
    }


def _rankings(
    predictor: Predictor, view: View, queries: Sequence[FileQuery], options: PredictOptions
) -> Iterator[tuple[FileQuery, Ranking, AttendedItems]]:
    """Yield each distinct query with its ranked labels, and its items if they are explained."""
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
    """Fuse vectors [n, d] with each query's items; returns them with the items to explain."""
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

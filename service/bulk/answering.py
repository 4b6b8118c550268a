"""Answers many queries in one thread, with a service's predictor and memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import repeat

import numpy as np

from service.bulk.query_file import FileQuery
from service.core.index.faiss_hnsw import search_in_one_thread
from service.core.index.protocol import batches
from service.core.lexical.words import TypedQuery
from service.core.memory.view import View
from service.core.prediction.answers import (
    KeywordAnswer,
    ResultAnswer,
    answer_of,
    result_answer,
    shown_boost,
)
from service.core.prediction.predictor import (
    AttendedItems,
    Predictor,
    as_answered,
    explained_items,
    explained_rules,
    texts_of,
)
from service.core.prediction.ranking import Ranking, Stopwatch
from service.core.types import Floats, Prediction, PredictOptions, Reading
from service.engine.loaded_bundle import LoadedBundle

_SEARCHED_TOGETHER = 256  # queries per search


def results(
    loaded: LoadedBundle, queries: Sequence[FileQuery], options: PredictOptions, *, now: int
) -> Mapping[FileQuery, ResultAnswer]:
    """Answer each distinct query, with results bit-identical to those of `POST /predict`.

    Labels that have not started `now`, in microseconds, or have expired, are left out. A query
    attends to the items that it names. Raises `InvalidInput` for an unknown item. Every answering
    thread calls this.

    All queries are encoded together, sorted by length. An encoder whose vectors depend on the batch
    encodes them one by one, as in the service. Without evidence, answers are made from ids and
    scores: creating `Keyword` objects takes twice the time.
    """
    predictor, memory = loaded.predictor, loaded.memory
    view = memory.only(memory.active(memory.view, now), options.filter)

    def explained(reading: Reading, ranking: Ranking, items: AttendedItems) -> ResultAnswer:
        keywords = predictor.keywords(view, reading, ranking, options)
        prediction = Prediction(
            reading=reading,
            keywords=keywords,
            items=items,
            score_kind=ranking.score_kind,
            **explained_rules(view, ranking, options),
        )
        return result_answer(prediction, explain=True)

    def plain(reading: Reading, ranking: Ranking, _items: AttendedItems) -> ResultAnswer:
        return answer_of(reading, ranking.score_kind, _keywords(view, reading, ranking))

    result = explained if options.explain else plain
    return {
        query: result(reading, ranking, items)
        for query, reading, ranking, items in _rankings(predictor, view, queries, options)
    }


def _rankings(
    predictor: Predictor, view: View, queries: Sequence[FileQuery], options: PredictOptions
) -> Iterator[tuple[FileQuery, Reading, Ranking, AttendedItems]]:
    """Yield each distinct query as it was read, its ranked labels, and its items if explained."""
    search_in_one_thread()
    distinct, watch = list(dict.fromkeys(queries)), Stopwatch()
    readings = predictor.read(view, [query.text for query in distinct], options, watch)
    vectors = predictor.encode(texts_of(readings), watch)
    stops = np.cumsum([len(of_query) for of_query in readings], dtype=np.int64)
    for batch in batches(len(distinct), _SEARCHED_TOGETHER):
        start = stops[batch.start - 1] if batch.start else 0
        of_texts = slice(start, stops[batch.stop - 1])
        of_batch = zip(distinct[batch], readings[batch], strict=True)
        owners = [query for query, of_query in of_batch for _ in of_query]
        searched, items = _fused(predictor, view, owners, vectors[of_texts], options)
        found = predictor.search(view, readings[batch], searched, options)
        rankings = predictor.rank(view, found, options, watch)
        chosen = (items[place] for place in found.places)
        for query, reading, attended, ranking in zip(
            distinct[batch], found.readings, chosen, rankings, strict=True
        ):
            answered, of_answer = as_answered(reading, attended, ranking)
            yield query, answered, ranking, of_answer


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


def _keywords(view: View, reading: Reading, ranking: Ranking) -> list[KeywordAnswer]:
    keywords: list[KeywordAnswer] = []
    asked, pinned = TypedQuery(reading.text), ranking.pinned
    confidences: Iterable[float | None] = ranking.confidences or repeat(None)
    boosts: Iterable[float] = ranking.boosts or repeat(1.0)
    for column, score, confidence, boost in zip(
        ranking.columns, ranking.scores, confidences, boosts, strict=False
    ):
        label_id, texts, novel, _ = view.labels.shown_at(column)
        match = asked.match(*texts)
        keyword: KeywordAnswer = {
            "id": label_id,
            "text": texts[0],
            "score": score,
            "novel": novel,
            "match": match,
        }
        if confidence is not None:
            keyword["confidence"] = confidence
        if boost != 1.0:
            keyword["boost"] = shown_boost(boost)
        if column in pinned:
            keyword["pinned"] = True
        keywords.append(keyword)
    return keywords

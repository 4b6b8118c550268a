"""Answers many queries in one thread, with a service's predictor and memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import repeat

from service.bulk.query_file import FileQuery
from service.core.index.faiss_hnsw import search_in_one_thread
from service.core.index.protocol import batches
from service.core.lexical.words import TypedQuery
from service.core.prediction.answers import (
    KeywordAnswer,
    ResultAnswer,
    answer_of,
    result_answer,
    shown_boost,
)
from service.core.prediction.predictor import prediction
from service.core.prediction.ranking import Query, Ranking, Stopwatch
from service.core.types import PredictOptions
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
    search_in_one_thread()
    predictor, memory, watch = loaded.predictor, loaded.memory, Stopwatch()
    view = memory.only(memory.active(memory.view, now), options.filter)
    alike: dict[tuple[str, ...] | None, list[FileQuery]] = {}  # by their items
    for query in dict.fromkeys(queries):
        alike.setdefault(query.items, []).append(query)
    distinct = [query for of_items in alike.values() for query in of_items]
    read = predictor.read(view, [query.text for query in distinct], options, watch)
    vectors, readings = predictor.encode(read, watch), dict(zip(distinct, read, strict=True))
    answers: dict[FileQuery, ResultAnswer] = {}
    for items, of_items in alike.items():
        own = replace(options, items=items)
        for batch in batches(len(of_items), _SEARCHED_TOGETHER):
            of_batch = [readings[query] for query in of_items[batch]]
            searched = predictor.searched(view, of_batch, vectors, own, watch)
            ranked = predictor.rank(searched, own)
            answers |= zip(of_items[batch], (_result(*one, own) for one in ranked), strict=True)
    return answers


def _result(query: Query, ranking: Ranking, options: PredictOptions) -> ResultAnswer:
    if options.explain:
        return result_answer(prediction(query, ranking, options), explain=True)
    return answer_of(query.reading, ranking.score_kind, _keywords(query, ranking))


def _keywords(query: Query, ranking: Ranking) -> list[KeywordAnswer]:
    keywords: list[KeywordAnswer] = []
    asked, labels = TypedQuery(query.reading.text), query.view.labels
    confidences: Iterable[float | None] = ranking.confidences or repeat(None)
    boosts: Iterable[float] = ranking.boosts or repeat(1.0)
    for column, score, confidence, boost in zip(
        ranking.columns, ranking.scores, confidences, boosts, strict=False
    ):
        label_id, texts, novel, _ = labels.shown_at(column)
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
        if column in ranking.pinned:
            keyword["pinned"] = True
        keywords.append(keyword)
    return keywords

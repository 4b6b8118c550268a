"""Builds the answers declared in `answers` from values of the engine and the core."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from threading import Lock
from typing import Any

import numpy as np
import orjson
from starlette.types import Receive, Scope, Send

from service.core import times
from service.core.errors import AnswerTooLarge
from service.core.label_filter import Metadata, list_items, metadata_bytes
from service.core.memory.decay import PLAIN
from service.core.memory.view import View
from service.core.tenant import Tenant
from service.core.types import (
    Answer,
    Evidence,
    Keyword,
    Label,
    NewInstance,
    Prediction,
    Reading,
    ScoreKind,
)
from service.engine.writing.operations import Written, WrittenLabel
from service.http.answers import (
    ClicksAnswer,
    EvidenceAnswer,
    KeywordAnswer,
    LabelAnswer,
    LabelStatus,
    LeftOutAnswer,
    PredictAnswer,
    ResultAnswer,
    ShownLabelAnswer,
    TimingAnswer,
)

PIECE_BYTES = 131_072  # of an answer that are passed to the server at once
KEYWORD_BYTES = 70  # of a keyword, in addition to its texts
EVIDENCE_BYTES = 90  # of a row of evidence, in addition to its text
FUSED_ITEM_BYTES = 80  # of a fused item, in addition to its id and text


class JsonAnswer:
    """A 200 with a JSON body: an ASGI application that is faster than Starlette's response."""

    def __init__(self, *parts: bytes) -> None:
        """Answer with a body of these parts. Long parts are never joined."""
        self._parts = parts
        self.size = sum(map(len, parts))  # of the body, in bytes

    async def __call__(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        """Send the answer. Several pieces are sent as fast as the client reads them."""
        headers = [
            (b"content-length", b"%d" % self.size),
            (b"content-type", b"application/json"),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        if self.size <= PIECE_BYTES:
            await send({"type": "http.response.body", "body": b"".join(self._parts)})
            return
        for part in self._parts:  # an empty part yields no piece
            for place in range(0, len(part), PIECE_BYTES):
                piece = part[place : place + PIECE_BYTES]
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


def json_lines(documents: Iterable[Mapping[str, Any]]) -> bytes:
    """Return documents as newline-delimited JSON."""
    return b"".join(
        orjson.dumps(document, option=orjson.OPT_APPEND_NEWLINE) for document in documents
    )


def predict_answer(answer: Answer, *, bundle: str, explain: bool) -> PredictAnswer:
    """Return the answer of POST /predict."""
    document: PredictAnswer = {
        "bundle": bundle,
        "version": answer.version,
        "results": [
            result_answer(prediction, explain=explain) for prediction in answer.predictions
        ],
        "timing_ms": _timing(answer.seconds),
    }
    if answer.filter_warnings:
        document["warnings"] = filter_warnings(answer.filter_warnings)
    return document


def filter_warnings(sentences: Iterable[str]) -> list[str]:
    """Return the `warnings` of an answer: sentences of a view about its filter."""
    return [f"filter: {sentence}" for sentence in sentences]


def require_answer_fits(answer: Answer, *, explain: bool, limit: int) -> None:
    """Raise `AnswerTooLarge` if an answer is estimated to exceed `limit` bytes."""
    _require_fits(sum(_size(prediction, explain) for prediction in answer.predictions), limit)


def _require_fits(size: int, limit: int) -> None:
    if size > limit:
        raise AnswerTooLarge(
            f"the answer would have at least {size} bytes, and {limit} are allowed; ask for fewer"
            " keywords, for fewer queries, or without `explain`",
            field="top_k",
        )


class SerializedResults:
    """Serializes a large answer's results, query by query, in the answering threads.

    Kept as objects, they would all be freed at once and block all other answers meanwhile.
    """

    def __init__(self, *, explain: bool, limit: int) -> None:
        """Allow about `limit` bytes for all results of the answer together."""
        self._explain, self._limit = explain, limit
        self._size, self._lock = 0, Lock()

    def __call__(self, prediction: Prediction) -> bytes:
        """Return a query's result as JSON. Raises `AnswerTooLarge` before building too much."""
        with self._lock:
            self._size += _size(prediction, self._explain)
            _require_fits(self._size, self._limit)
        return orjson.dumps(result_answer(prediction, explain=self._explain))


def large_predict_answer(answer: Answer, *, bundle: str) -> JsonAnswer:
    """Return the answer of POST /predict, made from serialized results."""
    parts = [b'{"bundle":%b,"version":%d,"results":[' % (orjson.dumps(bundle), answer.version)]
    for number, result in enumerate(answer.serialized):
        parts += [b"," if number else b"", result]
    parts.append(b'],"timing_ms":%b' % orjson.dumps(_timing(answer.seconds)))
    if answer.filter_warnings:
        parts.append(b',"warnings":%b' % orjson.dumps(filter_warnings(answer.filter_warnings)))
    parts.append(b"}")
    return JsonAnswer(*parts)


def left_out_answer(written: Written, instances: Sequence[NewInstance]) -> list[LeftOutAnswer]:
    """Return the unknown labels of a request's instances, which were skipped."""
    return [
        {
            "instance": place,
            "labels": [instances[place].labels[position] for _, position in positions],
        }
        for place, positions in groupby(written.left_out, key=itemgetter(0))
    ]


def shown_label(view: View, label_id: str, tenant: Tenant | None) -> ShownLabelAnswer:
    """Return the answer of GET /labels/{label_id} for a tenant; raises `UnknownLabel`."""
    label = view.labels.of(tenant).require_shown(label_id)
    return {**label_answer(label), "clicked": _clicks(view, label.index)}


def _clicks(view: View, column: int) -> ClicksAnswer:
    clicked = view.ownership.queries_for(column)
    answer: ClicksAnswer = {"total": len(clicked), "newest": list(clicked.newest)}
    weights = {
        # The weight as it was posted: the shortest number that gives the same float32.
        query: float(str(np.float32(vote.weight)))
        for query in clicked.newest
        if (vote := view.ownership.special_votes_of(query).get(column, PLAIN)).weight != 1.0
    }
    return {**answer, "weights": weights} if weights else answer


def label_answer(label: Label) -> LabelAnswer:
    """Return a label in the form of GET /labels."""
    answer: LabelAnswer = {
        "id": label.id,
        "text": label.text,
        "queries": list(label.queries),
        "metadata": dict(label.metadata),
        "novel": label.novel,
        "version": label.version,
    }
    if label.aliases:
        answer["aliases"] = list(label.aliases)
    if label.starts_at is not None:
        answer["starts_at"] = times.shown(label.starts_at)
    if label.expires_at is not None:
        answer["expires_at"] = times.shown(label.expires_at)
    if label.boost != 1.0:
        answer["boost"] = label.boost
    return answer


def label_size(label: Label) -> int:
    """Estimate the bytes of a label's answer."""
    texts = sum(4 + len(text) for text in (label.id, label.text, *label.aliases, *label.queries))
    return 100 + texts + _metadata_size(label.metadata)


def _metadata_size(metadata: Metadata) -> int:
    """Estimate the bytes of metadata as JSON."""
    return metadata_bytes(metadata) + 6 * len(metadata) + 3 * list_items(metadata)


def label_status(label: WrittenLabel, *, tenant: Tenant | None = None) -> LabelStatus:
    """Return what was done with one posted label, with ids as its tenant knows them."""

    def shown(stored_id: str) -> str:
        return stored_id if tenant is None else tenant.shown_id(stored_id)

    return {
        "id": shown(label.id),
        "status": label.status,
        "neighbours": [
            {"id": shown(neighbour.id), "text": neighbour.text, "similarity": neighbour.similarity}
            for neighbour in label.neighbours
        ],
    }


def _size(prediction: Prediction, explain: bool) -> int:
    """Estimate the bytes of a query's part of an answer."""
    size = sum(
        FUSED_ITEM_BYTES + len(item.id.encode()) + len(item.text.encode())
        for item in prediction.items or ()
    )
    size += sum(4 + len(one) for one in (*prediction.rules, *prediction.without_rules))
    for keyword in prediction.keywords:
        size += KEYWORD_BYTES + len(keyword.id) + len(keyword.text)
        if explain:
            size += _metadata_size(keyword.metadata)
            size += sum(EVIDENCE_BYTES + len(row.text) for row in keyword.evidence)
    return size


def result_answer(prediction: Prediction, *, explain: bool) -> ResultAnswer:
    """Return the keywords of one query in the form of POST /predict."""
    rows: dict[int, EvidenceAnswer] = {}  # by `id()`: keywords share rows that voted for several
    keywords = [_keyword(keyword, explain, rows) for keyword in prediction.keywords]
    answer = answer_of(prediction.reading, prediction.score_kind, keywords)
    if explain and prediction.reading.corrections:
        answer["corrections"] = [
            {"typed": one.typed, "read": one.read, "rows": one.rows}
            for one in prediction.reading.corrections
        ]
    if prediction.partial:
        answer["partial"] = True
    if prediction.rules:
        answer["rules"] = list(prediction.rules)
        answer["without_rules"] = list(prediction.without_rules)
    if prediction.items is not None:
        answer["items"] = [
            {
                "kind": "given" if item.given else "predicted",
                "id": item.id,
                "text": item.text,
                "similarity": item.similarity,
            }
            for item in prediction.items
        ]
    return answer


def answer_of(
    reading: Reading, score_kind: ScoreKind, keywords: list[KeywordAnswer]
) -> ResultAnswer:
    """Return the keywords of one query; `searched` is there if another text was searched."""
    query, searched = reading.query, reading.text
    if not reading.corrections:
        return {"query": query, "score_kind": score_kind, "keywords": keywords}
    return {"query": query, "searched": searched, "score_kind": score_kind, "keywords": keywords}


def shown_boost(boost: float) -> float:
    """Return the shortest decimal number that has this fp32 value: 1.2 for 1.2000000476837158."""
    return float(str(np.float32(boost)))


def _keyword(keyword: Keyword, explain: bool, rows: dict[int, EvidenceAnswer]) -> KeywordAnswer:
    document: KeywordAnswer = {
        "id": keyword.id,
        "text": keyword.text,
        "score": keyword.score,
        "novel": keyword.novel,
        "match": keyword.match,
    }
    if keyword.confidence is not None:
        document["confidence"] = keyword.confidence
    if keyword.boost != 1.0:
        document["boost"] = shown_boost(keyword.boost)
    if keyword.pinned:
        document["pinned"] = True
    if explain:
        if keyword.votes is not None:
            document["votes"] = keyword.votes
        document["metadata"] = dict(keyword.metadata)
        document["evidence"] = [
            rows.get(id(row)) or rows.setdefault(id(row), _evidence(row))
            for row in keyword.evidence
        ]
    return document


def _evidence(row: Evidence) -> EvidenceAnswer:
    document: EvidenceAnswer = {
        "kind": row.kind,
        "text": row.text,
        "similarity": row.similarity,
        "weight": row.weight,
    }
    if row.words:
        document["words"] = row.words
    if row.hub:
        document["hub"] = row.hub
    return document


def _timing(seconds: Mapping[str, float]) -> TimingAnswer:
    """Return the milliseconds of the four documented stages; three of them sum several stages."""

    def milliseconds(*stages: str) -> float:
        return round(1000 * sum(seconds.get(stage, 0.0) for stage in stages), 3)

    return {
        "queue": milliseconds("queue"),
        "encode": milliseconds("spell", "tokenize", "encode", "fuse"),
        "retrieve": milliseconds("filter", "retrieve"),
        "score": milliseconds("score", "rerank"),
    }

"""Builds the answers of `answers` from the values of the engine and the core."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from threading import Lock
from typing import Any

import numpy as np
import orjson
from starlette.types import Receive, Scope, Send

from service.core.errors import AnswerTooLarge
from service.core.memory.view import View
from service.core.types import Answer, Evidence, FusedItem, Keyword, Label, Prediction
from service.engine.writing.written import Written, WrittenLabel
from service.http.answers import (
    ClicksAnswer,
    EvidenceAnswer,
    FusedItemAnswer,
    KeywordAnswer,
    LabelAnswer,
    LabelsAnswer,
    LabelStatus,
    LineAnswer,
    LineRefusal,
    MergeAnswer,
    PredictAnswer,
    ResultAnswer,
    ShownLabelAnswer,
    StreamEnd,
    TimingAnswer,
)
from service.http.problems import Problem

PIECE_BYTES = 131_072  # of an answer that are handed to the server at once
KEYWORD_BYTES = 70  # of a keyword beside its texts
EVIDENCE_BYTES = 90  # of a row of evidence beside its text
FUSED_ITEM_BYTES = 80  # of an item that was fused beside its id and text


class JsonAnswer:
    """A 200 with a JSON body: an ASGI application with less work than Starlette's response."""

    def __init__(self, document: Any) -> None:
        """Serialise `document`."""
        self._parts: tuple[bytes, ...] = (orjson.dumps(document),)
        self.size = len(self._parts[0])  # bytes of the body

    @classmethod
    def of_parts(cls, parts: Iterable[bytes]) -> JsonAnswer:
        """The answer whose body are these parts; long ones are never joined, which takes time."""
        answer = cls.__new__(cls)
        answer._parts = tuple(parts)
        answer.size = sum(map(len, answer._parts))
        return answer

    async def __call__(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        """Send the answer; one of several pieces as fast as the client reads it."""
        headers = [
            (b"content-length", b"%d" % self.size),
            (b"content-type", b"application/json"),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        if self.size <= PIECE_BYTES:
            await send({"type": "http.response.body", "body": b"".join(self._parts)})
            return
        for part in self._parts:  # an empty one has no piece
            for place in range(0, len(part), PIECE_BYTES):
                piece = part[place : place + PIECE_BYTES]
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


def json_lines(documents: Iterable[Mapping[str, Any]]) -> bytes:
    """The documents as newline-delimited JSON."""
    return b"".join(
        orjson.dumps(document, option=orjson.OPT_APPEND_NEWLINE) for document in documents
    )


def predict_answer(answer: Answer, *, bundle: str, explain: bool) -> PredictAnswer:
    """The answer of POST /predict."""
    return {
        "bundle": bundle,
        "version": answer.version,
        "results": [
            result_answer(prediction, explain=explain) for prediction in answer.predictions
        ],
        "timing_ms": _timing(answer.seconds),
    }


def require_answer_fits(answer: Answer, *, explain: bool, limit: int) -> None:
    """Raise `AnswerTooLarge` where an answer will have more than about `limit` bytes."""
    _require_fits(sum(_size(prediction, explain) for prediction in answer.predictions), limit)


def _require_fits(size: int, limit: int) -> None:
    if size > limit:
        raise AnswerTooLarge(
            f"the answer would have at least {size} bytes, and {limit} are allowed; ask for fewer"
            " keywords, for fewer queries, or without `explain`",
            field="top_k",
        )


class SerializedResults:
    """Serialises the results of one large answer, query by query, wherever they are made.

    As objects they would all be freed in one go, in which nothing else is answered.
    """

    def __init__(self, *, explain: bool, limit: int) -> None:
        """All results of an answer together may have about `limit` bytes."""
        self._explain, self._limit = explain, limit
        self._size, self._lock = 0, Lock()

    def __call__(self, prediction: Prediction) -> bytes:
        """A query's result as JSON; raises `AnswerTooLarge` before it builds what is too much."""
        with self._lock:
            self._size += _size(prediction, self._explain)
            _require_fits(self._size, self._limit)
        return orjson.dumps(result_answer(prediction, explain=self._explain))


def large_predict_answer(answer: Answer, *, bundle: str) -> JsonAnswer:
    """The same document as `predict_answer`, from results that are serialised already."""
    return JsonAnswer.of_parts(_large_parts(answer, bundle=bundle))


def _large_parts(answer: Answer, *, bundle: str) -> Iterator[bytes]:
    """The parts of `predict_answer` as JSON, one for each query between others."""
    yield b'{"bundle":%b,"version":%d,"results":[' % (orjson.dumps(bundle), answer.version)
    for number, result in enumerate(answer.serialized):
        yield b"," if number else b""
        yield result
    yield b'],"timing_ms":%b}' % orjson.dumps(_timing(answer.seconds))


def labels_answer(written: Written) -> LabelsAnswer:
    """The answer of POST /labels."""
    return {
        "version": written.version,
        "labels": [_label_status(label) for label in written.labels],
    }


def merge_answer(written: Written) -> MergeAnswer:
    """The answer of PATCH /labels/{label_id}."""
    [label] = written.labels
    return {**_label_status(label), "version": written.version}


def line_answer(line: int, label: WrittenLabel, *, version: int) -> LineAnswer:
    """The answer to a line of a stream whose label was written."""
    return {"line": line, **_label_status(label), "version": version}


def line_refusal(line: int, problem: Problem) -> LineRefusal:
    """The answer to a line of a stream that was not written."""
    return {"line": line, "error": problem}


def stream_end(line: int, problem: Problem) -> StreamEnd:
    """The last line of the answer to a stream that ended early; `line` is the last one answered."""
    return {"stopped_after": line, "error": problem}


def shown_label(view: View, label_id: str) -> ShownLabelAnswer:
    """The answer of GET /labels/{label_id}; raises `UnknownLabel`."""
    label = view.labels.require(label_id)
    return {**label_answer(label), "clicked": _clicks(view, label.index)}


def _clicks(view: View, column: int) -> ClicksAnswer:
    clicked = view.ownership.queries_for(column)
    answer: ClicksAnswer = {"total": len(clicked), "newest": list(clicked.newest)}
    weights = {
        # As it was posted: the shortest number that is the same float32.
        query: float(str(np.float32(weight)))
        for query in clicked.newest
        if (weight := view.ownership.weights_of(query).get(column)) is not None
    }
    return {**answer, "weights": weights} if weights else answer


def label_answer(label: Label) -> LabelAnswer:
    """A label, as GET /labels lists it."""
    return {
        "id": label.id,
        "text": label.text,
        "queries": list(label.queries),
        "metadata": dict(label.metadata),
        "novel": label.novel,
        "version": label.version,
    }


def label_size(label: Label) -> int:
    """About how many bytes the answer of a label has."""
    texts = sum(4 + len(text) for text in (label.id, label.text, *label.queries))
    return 100 + texts + sum(6 + len(k) + len(v) for k, v in label.metadata.items())


def _label_status(label: WrittenLabel) -> LabelStatus:
    return {
        "id": label.id,
        "status": label.status,
        "neighbours": [
            {"id": neighbour.id, "text": neighbour.text, "similarity": neighbour.similarity}
            for neighbour in label.neighbours
        ],
    }


def _size(prediction: Prediction, explain: bool) -> int:
    """About how many bytes a query's part of an answer has."""
    size = sum(
        FUSED_ITEM_BYTES + len(item.id.encode()) + len(item.text.encode())
        for item in prediction.items or ()
    )
    for keyword in prediction.keywords:
        size += KEYWORD_BYTES + len(keyword.id) + len(keyword.text)
        if explain:
            size += sum(4 + len(name) + len(value) for name, value in keyword.metadata.items())
            size += sum(EVIDENCE_BYTES + len(row.text) for row in keyword.evidence)
    return size


def result_answer(prediction: Prediction, *, explain: bool) -> ResultAnswer:
    """The keywords of one query, as `results` of POST /predict has them."""
    rows: dict[int, EvidenceAnswer] = {}  # by identity: keywords share the rows that voted for them
    keywords = [_keyword(keyword, explain, rows) for keyword in prediction.keywords]
    if prediction.items is None:
        return {"query": prediction.query, "keywords": keywords}
    items = [_fused_item(item) for item in prediction.items]
    return {"query": prediction.query, "items": items, "keywords": keywords}


def _fused_item(item: FusedItem) -> FusedItemAnswer:
    return {
        "kind": "given" if item.given else "predicted",
        "id": item.id,
        "text": item.text,
        "similarity": item.similarity,
    }


def _keyword(keyword: Keyword, explain: bool, rows: dict[int, EvidenceAnswer]) -> KeywordAnswer:
    document: KeywordAnswer = {
        "id": keyword.id,
        "text": keyword.text,
        "score": keyword.score,
        "novel": keyword.novel,
    }
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
    return {
        "kind": row.kind.value,
        "text": row.text,
        "similarity": row.similarity,
        "weight": row.weight,
    }


def _timing(seconds: Mapping[str, float]) -> TimingAnswer:
    """Milliseconds by the four documented stages, of which two are made of several."""
    get = seconds.get
    return {
        "queue": round(1000 * get("queue", 0.0), 3),
        "encode": round(1000 * sum(get(stage, 0.0) for stage in ("tokenize", "encode", "fuse")), 3),
        "retrieve": round(1000 * get("retrieve", 0.0), 3),
        "score": round(1000 * sum(get(stage, 0.0) for stage in ("score", "rerank")), 3),
    }

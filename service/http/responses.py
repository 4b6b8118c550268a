"""Builds the answers of `answers` from the values of the engine and the core."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import orjson
from starlette.responses import Response

from service.core.types import Answer, Keyword, Label
from service.engine.writing.written import Written, WrittenLabel
from service.http.answers import (
    KeywordAnswer,
    LabelAnswer,
    LabelsAnswer,
    LabelStatus,
    LineAnswer,
    LineRefusal,
    PredictAnswer,
    StreamEnd,
    TimingAnswer,
)
from service.http.problems import Problem


def json_response(document: Any) -> Response:
    """A 200 with a JSON body."""
    return Response(orjson.dumps(document), media_type="application/json")


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
            {
                "query": prediction.query,
                "keywords": [_keyword(keyword, explain) for keyword in prediction.keywords],
            }
            for prediction in answer.predictions
        ],
        "timing_ms": _timing(answer.seconds),
    }


def labels_answer(written: Written) -> LabelsAnswer:
    """The answer of POST /labels."""
    return {
        "version": written.version,
        "labels": [_label_status(label) for label in written.labels],
    }


def line_answer(line: int, label: WrittenLabel, *, version: int) -> LineAnswer:
    """The answer to a line of a stream whose label was written."""
    return {"line": line, **_label_status(label), "version": version}


def line_refusal(line: int, problem: Problem) -> LineRefusal:
    """The answer to a line of a stream that was not written."""
    return {"line": line, "error": problem}


def stream_end(line: int, problem: Problem) -> StreamEnd:
    """The last line of the answer to a stream that ended early; `line` is the last one answered."""
    return {"stopped_after": line, "error": problem}


def label_answer(label: Label) -> LabelAnswer:
    """A label, as GET /labels and GET /labels/{label_id} show it."""
    return {
        "id": label.id,
        "text": label.text,
        "queries": list(label.queries),
        "metadata": dict(label.metadata),
        "novel": label.novel,
        "version": label.version,
    }


def _label_status(label: WrittenLabel) -> LabelStatus:
    return {
        "id": label.id,
        "status": label.status,
        "neighbours": [
            {"id": neighbour.id, "text": neighbour.text, "similarity": neighbour.similarity}
            for neighbour in label.neighbours
        ],
    }


def _keyword(keyword: Keyword, explain: bool) -> KeywordAnswer:
    document: KeywordAnswer = {
        "id": keyword.id,
        "text": keyword.text,
        "score": keyword.score,
        "novel": keyword.novel,
    }
    if explain:
        document["metadata"] = dict(keyword.metadata)
        document["evidence"] = [
            {
                "kind": row.kind.value,
                "text": row.text,
                "similarity": row.similarity,
                "weight": row.weight,
            }
            for row in keyword.evidence
        ]
    return document


def _timing(seconds: Mapping[str, float]) -> TimingAnswer:
    """Milliseconds by the four documented stages; tokenizing counts as encoding."""

    def milliseconds(*stages: str) -> float:
        return round(1000 * sum(seconds.get(stage, 0.0) for stage in stages), 3)

    return {
        "queue": milliseconds("queue"),
        "encode": milliseconds("tokenize", "encode"),
        "retrieve": milliseconds("retrieve"),
        "score": milliseconds("score"),
    }

"""Core values -> wire types, as plain documents for orjson."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import orjson
from starlette.responses import Response

from service.core.types import Answer, Keyword, Label
from service.engine.write_operations import Written, WrittenLabel


def json_response(document: Any) -> Response:
    """A 200 with a JSON body."""
    return Response(orjson.dumps(document), media_type="application/json")


def predict_answer(answer: Answer, *, bundle: str, explain: bool) -> dict[str, Any]:
    """The body of an answered POST /predict."""
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


def labels_answer(written: Written) -> dict[str, Any]:
    """The body of an answered POST /labels."""
    return {"version": written.version, "labels": [_fate(label) for label in written.labels]}


def line_answer(line: int, label: WrittenLabel, *, version: int) -> dict[str, Any]:
    """What became of the label in a line of a stream."""
    return {"line": line, **_fate(label), "version": version}


def line_refusal(line: int, problem: Mapping[str, Any]) -> dict[str, Any]:
    """Why a line of a stream was not applied."""
    return {"line": line, "error": problem}


def stream_end(line: int, problem: Mapping[str, Any]) -> dict[str, Any]:
    """The last object of a stream that had to end: lines up to `line` are answered above it."""
    return {"stopped_after": line, "error": problem}


def json_lines(documents: Iterable[Mapping[str, Any]]) -> bytes:
    """Documents as JSON, one a line."""
    return b"".join(orjson.dumps(one, option=orjson.OPT_APPEND_NEWLINE) for one in documents)


def label_answer(label: Label) -> dict[str, Any]:
    """A label as GET /labels shows it."""
    return {
        "id": label.id,
        "text": label.text,
        "queries": list(label.queries),
        "metadata": dict(label.metadata),
        "novel": label.novel,
        "version": label.version,
    }


def _fate(label: WrittenLabel) -> dict[str, Any]:
    """A written label; neighbours need a combiner in the bundle."""
    return {
        "id": label.id,
        "status": label.status,
        "neighbours": [
            {"id": near.id, "text": near.text, "similarity": near.similarity}
            for near in label.neighbours
        ],
    }


def _keyword(keyword: Keyword, explain: bool) -> dict[str, Any]:
    document: dict[str, Any] = {
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


def _timing(seconds: Mapping[str, float]) -> dict[str, float]:
    """Milliseconds by the four stages of the contract; tokenizing counts as encoding."""
    stages = {
        "queue": seconds.get("queue", 0.0),
        "encode": seconds.get("tokenize", 0.0) + seconds.get("encode", 0.0),
        "retrieve": seconds.get("retrieve", 0.0),
        "score": seconds.get("score", 0.0),
    }
    return {stage: round(1000 * value, 3) for stage, value in stages.items()}

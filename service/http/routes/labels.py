"""/labels: the keywords that the memory holds, and new ones."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from starlette.convertors import PathConvertor, register_url_convertor

from service.core.errors import InvalidInput, NotReady
from service.engine.write_operations import PutLabels, RemoveLabel
from service.http import schemas
from service.http.idempotency import request_key
from service.http.request_body import JSON, NDJSON, media_type, read_json, refuse_idempotency_key
from service.http.responses import json_response, label_answer, labels_answer
from service.http.routes.dependencies import Parts, answer_lines, body, idempotency_header, problems
from service.http.streaming.label_stream import LabelStream


class LabelId(PathConvertor):
    """Any text; the framework's own `path` stops at a line break."""

    regex = "(?s:.*)"


def build_router(parts: Parts) -> APIRouter:
    """The routes over the parts' engine."""
    register_url_convertor("label_id", LabelId())
    router = APIRouter()
    models = schemas.RequestModels(parts.limits)

    @router.post(
        "/labels",
        summary="Create or replace labels",
        dependencies=[parts.scope("write")],
        response_model=schemas.LabelsAnswer,
        responses={
            **problems(400, 401, 403, 409, 413, 415, 422, 429, 503, 507),
            200: answer_lines(schemas.LineAnswer | schemas.LineRefusal | schemas.StreamEnd),
        },
        openapi_extra={**body(models.labels, line=models.label), **idempotency_header()},
    )
    async def put_labels(request: Request) -> Response:
        if media_type(request, JSON, NDJSON) == NDJSON:
            return label_stream(request)
        asked = await read_json(request, models.labels, limit=parts.limits.body_bytes)
        written = await parts.engine.write(
            PutLabels(labels=tuple(label.to_label() for label in asked.labels)),
            request=request_key(request, asked),
        )
        return json_response(labels_answer(written))

    def label_stream(request: Request) -> Response:
        refuse_idempotency_key(request)
        if parts.draining() or not parts.engine.ready():
            raise NotReady("the service takes no labels now")
        return LabelStream(
            model=models.label,
            apply=parts.engine.put_labels,
            draining=parts.draining,
            limits=parts.limits,
            telemetry=parts.telemetry,
        )

    @router.get(
        "/labels",
        summary="List live labels",
        dependencies=[parts.scope("read")],
        response_model=schemas.LabelPage,
        responses=problems(401, 403, 422, 503),
    )
    async def list_labels(page: Annotated[schemas.Page, Query()]) -> Response:
        if page.limit > parts.limits.page:
            raise InvalidInput(f"must be at most {parts.limits.page}", field="limit")
        view = parts.engine.view
        # In a thread: the first page after a write sorts all ids.
        found = await asyncio.to_thread(view.labels.page, after=page.after, size=page.limit + 1)
        shown = found[: page.limit]
        return json_response(
            {
                "version": view.version,
                "labels": [label_answer(label) for label in shown],
                "next": shown[-1].id if len(found) > len(shown) else None,
            }
        )

    @router.get(
        "/labels/{label_id:label_id}",
        summary="Show one label",
        dependencies=[parts.scope("read")],
        response_model=schemas.LabelAnswer,
        responses=problems(401, 403, 404, 422, 503),  # the framework would add its own 422
    )
    async def get_label(label_id: str) -> Response:
        return json_response(label_answer(parts.engine.view.labels.require(label_id)))

    @router.delete(
        "/labels/{label_id:label_id}",
        summary="Delete one label",
        dependencies=[parts.scope("write")],
        response_model=schemas.VersionAnswer,
        responses=problems(401, 403, 404, 409, 422, 429, 503),
        openapi_extra=idempotency_header(),
    )
    async def delete_label(label_id: str, request: Request) -> Response:
        written = await parts.engine.write(
            RemoveLabel(id=label_id), request=request_key(request, schemas.StrictModel())
        )
        return json_response({"version": written.version})

    return router

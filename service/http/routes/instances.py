"""POST /instances: clicks, learned without training."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from service.engine.write_operations import PutInstances
from service.http import schemas
from service.http.idempotency import request_key
from service.http.request_body import read_json
from service.http.responses import json_response
from service.http.routes.dependencies import Parts, body, idempotency_header, problems


def build_router(parts: Parts) -> APIRouter:
    """The route over the parts' engine."""
    router = APIRouter()
    models = schemas.RequestModels(parts.limits)

    @router.post(
        "/instances",
        summary="Learn which labels queries were clicked for",
        dependencies=[parts.scope("write")],
        response_model=schemas.InstancesAnswer,
        responses=problems(400, 401, 403, 409, 413, 415, 422, 429, 503, 507),
        openapi_extra={**body(models.instances), **idempotency_header()},
    )
    async def put_instances(request: Request) -> Response:
        asked = await read_json(request, models.instances, limit=parts.limits.body_bytes)
        written = await parts.engine.write(
            PutInstances(instances=tuple(one.to_instance() for one in asked.instances)),
            request=request_key(request, asked),
        )
        return json_response({"version": written.version, "accepted": written.accepted})

    return router

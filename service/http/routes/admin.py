"""/admin: snapshots of what is served, and other bundles in its place."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from service.http import schemas
from service.http.request_body import read_json
from service.http.responses import json_response
from service.http.routes.dependencies import Parts, body, problems


def build_router(parts: Parts) -> APIRouter:
    """The routes over the parts' engine."""
    router = APIRouter(prefix="/admin")

    @router.post(
        "/snapshot",
        summary="Write everything that is served as a new bundle",
        dependencies=[parts.scope("admin")],
        response_model=schemas.BundleAnswer,
        responses=problems(400, 401, 403, 409, 413, 415, 422, 503),
        openapi_extra=body(schemas.SnapshotBody, required=False),
    )
    async def snapshot(request: Request) -> Response:
        asked = await read_json(
            request, schemas.SnapshotBody, limit=parts.limits.body_bytes, default=b"{}"
        )
        name, version = await parts.engine.snapshot(asked.bundle)
        return json_response({"bundle": name, "version": version})

    @router.post(
        "/reload",
        summary="Serve another bundle from now on",
        dependencies=[parts.scope("admin")],
        response_model=schemas.BundleAnswer,
        responses=problems(400, 401, 403, 409, 413, 415, 422, 503),
        openapi_extra=body(schemas.ReloadBody),
    )
    async def reload(request: Request) -> Response:
        asked = await read_json(request, schemas.ReloadBody, limit=parts.limits.body_bytes)
        name, version = await parts.engine.reload(asked.bundle)
        return json_response({"bundle": name, "version": version})

    return router

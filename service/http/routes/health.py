"""Probes, /info and /metrics: for those who run the service."""

from __future__ import annotations

from fastapi import APIRouter, Response
from fastapi.responses import RedirectResponse

from service.http.problems import problem
from service.http.responses import json_response
from service.http.routes.dependencies import Parts, problems

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def build_router(parts: Parts) -> APIRouter:
    """The routes over the parts' engine."""
    router = APIRouter()

    @router.get("/health/live", summary="No restart is needed", responses=problems(503))
    async def live() -> Response:
        if parts.engine.broken():
            return problem(503, "Broken", "a part of the service has died; restart it")
        return json_response({"status": "live"})

    @router.get(
        "/health/ready",
        summary="Queries are answered; `writes` says whether the label log can be used",
        responses=problems(503),
    )
    async def ready() -> Response:
        if parts.engine.ready():
            writes = "failing" if parts.engine.log_failure() else "accepted"
            return json_response({"status": "ready", "writes": writes})
        return problem(503, "Not ready", f"the service is {parts.engine.state.value}")

    @router.get(
        "/info",
        summary="Bundle, counts and limits",
        dependencies=[parts.scope("read")],
        responses=problems(401, 403, 503),
    )
    async def info() -> Response:
        return json_response({**parts.engine.describe(), "limits": vars(parts.limits)})

    @router.get("/metrics", summary="Prometheus metrics", response_class=Response)
    async def metrics() -> Response:
        parts.engine.measure()
        return Response(parts.telemetry.render(), media_type=METRICS_TYPE)

    @router.get("/", include_in_schema=False)
    async def root() -> Response:
        return RedirectResponse("/docs")

    return router

"""POST /predict."""

from __future__ import annotations

from time import monotonic

from fastapi import APIRouter, Request, Response

from service.core.types import PredictOptions
from service.http import schemas
from service.http.request_body import read_json
from service.http.responses import json_response, predict_answer
from service.http.routes.dependencies import Parts, body, problems


def build_router(parts: Parts) -> APIRouter:
    """The route over the parts' engine."""
    router = APIRouter()
    models = schemas.RequestModels(parts.limits)

    @router.post(
        "/predict",
        summary="Match queries to keywords",
        dependencies=[parts.scope("read")],
        response_model=schemas.PredictAnswer,
        responses=problems(400, 401, 403, 413, 415, 422, 429, 503, 504),
        openapi_extra=body(models.predict),
    )
    async def predict(request: Request) -> Response:
        started = monotonic()
        asked = await read_json(request, models.predict, limit=parts.limits.body_bytes)
        bundle, answer = await parts.engine.predict(
            asked.queries,
            PredictOptions(top_k=asked.top_k, explain=asked.explain),
            deadline=started + asked.deadline_ms / 1000,
            min_version=asked.min_version,
            memorization=asked.memorization,
            depth=asked.depth,
        )
        return json_response(predict_answer(answer, bundle=bundle, explain=asked.explain))

    return router

"""POST /predict: queries to keywords."""

from __future__ import annotations

from typing import Any

from service.core.prediction.predictor import EVIDENCE_ROWS
from service.core.types import PredictOptions
from service.http.answers import PredictAnswer
from service.http.endpoint import Call, Endpoint
from service.http.request_models import PredictBody
from service.http.responses import (
    KEYWORD_BYTES,
    JsonAnswer,
    large_predict_answer,
    predict_answer,
    require_answer_fits,
)
from service.http.routes.dependencies import RouteDependencies

FEW_ROWS = 1_000  # keywords or evidence, of which the event loop builds an answer in a millisecond


class PredictRoutes:
    """Answers queries."""

    def __init__(self, dependencies: RouteDependencies) -> None:
        self._engine, self._models = dependencies.engine, dependencies.models
        self._side_thread = dependencies.side_thread
        self._answer_bytes = dependencies.limits.answer_bytes

    def endpoints(self) -> list[Endpoint[Any]]:
        """The declared routes."""
        return [
            Endpoint(
                method="POST",
                path="/predict",
                summary="Match queries to keywords",
                handler=self.predict,
                scope="read",
                body=self._models.predict,
                answer=PredictAnswer,
                refusals=(429, 503, 504),
            )
        ]

    async def predict(self, call: Call[PredictBody]) -> PredictAnswer | JsonAnswer:
        """Answer all queries of a request from one view of the memory."""
        body = call.input
        rows = len(body.queries) * body.top_k * (EVIDENCE_ROWS if body.explain else 1)
        if rows > FEW_ROWS:  # as much is held before its answer is built, and waits for that
            call.hold.add(min(rows * KEYWORD_BYTES, self._answer_bytes))
        bundle, answer = await self._engine.predict(
            body.queries,
            PredictOptions(top_k=body.top_k, explain=body.explain),
            deadline=call.received + body.deadline_ms / 1000,
            min_version=body.min_version,
            client=call.request.scope.get("state", {}).get("client"),
            memorization=body.memorization,
            depth=body.depth,
        )
        if rows <= FEW_ROWS:
            if body.explain:  # only metadata and evidence make so few rows large
                require_answer_fits(answer, explain=True, limit=self._answer_bytes)
            return predict_answer(answer, bundle=bundle, explain=body.explain)
        return await self._side_thread.run(
            large_predict_answer,
            answer,
            bundle=bundle,
            explain=body.explain,
            limit=self._answer_bytes,
            hold=call.hold,
        )

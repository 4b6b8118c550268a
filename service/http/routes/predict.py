"""POST /predict: queries to keywords."""

from __future__ import annotations

from typing import Any

from service.core.types import PredictOptions
from service.http.answers import PredictAnswer
from service.http.endpoint import Call, Endpoint
from service.http.request_models import PredictBody
from service.http.responses import predict_answer
from service.http.routes.dependencies import RouteDependencies


class PredictRoutes:
    """Answers queries."""

    def __init__(self, dependencies: RouteDependencies) -> None:
        self._engine, self._models = dependencies.engine, dependencies.models

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

    async def predict(self, call: Call[PredictBody]) -> PredictAnswer:
        """Answer all queries of a request from one view of the memory."""
        body = call.input
        bundle, answer = await self._engine.predict(
            body.queries,
            PredictOptions(top_k=body.top_k, explain=body.explain),
            deadline=call.received + body.deadline_ms / 1000,
            min_version=body.min_version,
            memorization=body.memorization,
            depth=body.depth,
        )
        return predict_answer(answer, bundle=bundle, explain=body.explain)

"""POST /predict: queries to keywords."""

from __future__ import annotations

from typing import Any

from service.core.errors import DeadlineExceeded
from service.core.prediction.evidence import EVIDENCE_ROWS
from service.core.types import Answer, PredictOptions
from service.engine.reading.query_cost import query_cost
from service.http.answers import PredictAnswer
from service.http.endpoint import Call, Endpoint
from service.http.request_models.predictions import PredictBody
from service.http.responses import (
    KEYWORD_BYTES,
    JsonAnswer,
    SerializedResults,
    large_predict_answer,
    predict_answer,
    require_answer_fits,
)
from service.http.routes.dependencies import RouteDependencies

# Keywords, evidence and items, of which the event loop builds an answer in a millisecond.
FEW_ROWS = 1_000


class PredictRoutes:
    """Answers queries."""

    def __init__(self, dependencies: RouteDependencies) -> None:
        self._engine, self._models = dependencies.engine, dependencies.models
        self._limits = dependencies.limits
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
        rows = len(body.queries) * self._rows_of_query(body)
        if rows > FEW_ROWS:  # as much is held before its answer is built, and waits for that
            call.hold.add(min(rows * KEYWORD_BYTES, self._answer_bytes))
            serialize = SerializedResults(explain=body.explain, limit=self._answer_bytes)
            bundle, answer = await self._answer(call, serialize)
            return large_predict_answer(answer, bundle=bundle)
        bundle, answer = await self._answer(call)
        if body.explain:  # only metadata, evidence and items make so few rows large
            require_answer_fits(answer, explain=True, limit=self._answer_bytes)
        return predict_answer(answer, bundle=bundle, explain=body.explain)

    def _rows_of_query(self, body: PredictBody) -> int:
        """The most keywords that a query's result has; with evidence, its rows and items."""
        if not body.explain:
            return body.top_k
        memory = self._engine.view.items
        items = 0 if memory is None else memory.attended if body.items is None else len(body.items)
        return body.top_k * EVIDENCE_ROWS + items

    async def _answer(
        self, call: Call[PredictBody], serialize: SerializedResults | None = None
    ) -> tuple[str, Answer]:
        """The bundle's name and the answer; a passed deadline is named by its field."""
        body = call.input
        items = None if body.items is None else tuple(body.items)
        base = PredictOptions(top_k=body.top_k, explain=body.explain, items=items)
        deadline_ms = body.deadline_ms or self._default_deadline_ms(base, body)
        try:
            return await self._engine.predict(
                body.queries,
                base,
                deadline=call.received + deadline_ms / 1000,
                min_version=body.min_version,
                client=call.request.scope.get("state", {}).get("client"),
                serialize=serialize,
                memorization=body.memorization,
                depth=body.depth,
                rerank=body.rerank,
            )
        except DeadlineExceeded as error:
            raise DeadlineExceeded(
                f"{error}; `deadline_ms` was {deadline_ms}: set a longer one, of at most"
                f" {self._limits.deadline_ms}, or send fewer queries at once"
            ) from error

    def _default_deadline_ms(self, base: PredictOptions, body: PredictBody) -> int:
        """What one plain query gets, and a share for each further one that the request costs."""
        limits = self._limits
        options = self._engine.loaded.options(
            base, memorization=body.memorization, depth=body.depth, rerank=body.rerank
        )
        further = len(body.queries) * query_cost(options) - 1
        return min(
            limits.default_deadline_ms + further * limits.default_deadline_query_ms,
            limits.deadline_ms,
        )

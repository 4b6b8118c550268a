"""POST /predict: queries to keywords."""

from __future__ import annotations

from typing import Any

from service.core.bundle.manifest import Manifest
from service.core.errors import DeadlineExceeded
from service.core.label_filter import parse
from service.core.prediction.predictor import EVIDENCE_ROWS
from service.core.types import Answer, PredictOptions
from service.engine.reading.task_queue import QueryRequest
from service.http.answers import PredictAnswer
from service.http.endpoint import Call, Endpoint, Routes
from service.http.request_models import PredictBody
from service.http.responses import (
    KEYWORD_BYTES,
    JsonAnswer,
    SerializedResults,
    large_predict_answer,
    predict_answer,
    require_answer_fits,
)

# The most keywords, evidence and items for which the event loop builds the answer, in 1 ms.
FEW_ROWS = 1_000


class PredictRoutes(Routes):
    """Answers queries."""

    def endpoints(self) -> list[Endpoint[Any]]:
        return [
            Endpoint(
                route="POST /predict",
                summary="Match queries to keywords",
                handler=self.predict,
                scope="read",
                body=self.models.predict,
                answer=PredictAnswer,
                refusals=(504,),
            )
        ]

    async def predict(self, call: Call[PredictBody]) -> PredictAnswer | JsonAnswer:
        """Answer all queries of a request from one view of the memory."""
        body = call.input
        rows = len(body.queries) * self._rows_of_query(body)
        if rows > FEW_ROWS:  # such an answer is reserved in advance and serialized by the threads
            call.hold.add(min(rows * KEYWORD_BYTES, self.limits.answer_bytes))
            serialize = SerializedResults(explain=body.explain, limit=self.limits.answer_bytes)
            bundle, answer = await self._answer(call, serialize)
            return large_predict_answer(answer, bundle=bundle)
        bundle, answer = await self._answer(call)
        if body.explain:  # without explanations, so few rows are never too large
            require_answer_fits(answer, explain=True, limit=self.limits.answer_bytes)
        return predict_answer(answer, bundle=bundle, explain=body.explain)

    def _rows_of_query(self, body: PredictBody) -> int:
        """Return the most keywords of a query's result, plus evidence and items if `explain`."""
        if not body.explain:
            return body.top_k
        memory = self.engine.view.items
        items = 0 if memory is None else memory.attended if body.items is None else len(body.items)
        return body.top_k * EVIDENCE_ROWS + items

    async def _answer(
        self, call: Call[PredictBody], serialize: SerializedResults | None = None
    ) -> tuple[str, Answer]:
        """Return the bundle's name and the answer; a deadline error names its field."""
        body = call.input
        items = None if body.items is None else tuple(body.items)
        match = None if body.match is None else tuple(dict.fromkeys(body.match))
        wanted = None
        if body.filter is not None:
            wanted = await self.side_thread.run_if(
                call.hold.size, parse, body.filter, at="filter", most=self.limits.filter_values
            )
        asked = PredictOptions(
            top_k=body.top_k,
            explain=body.explain,
            items=items,
            match=match,
            min_confidence=body.min_confidence,
            diversity=body.diversity,
            filter=wanted,
            tenant=call.tenant,
        )

        def choose(facts: Manifest) -> PredictOptions:
            return facts.options(
                asked,
                memorization=body.memorization,
                depth=body.depth,
                rerank=body.rerank,
                spelling=body.spelling,
            )

        request = QueryRequest(
            body.queries,
            self.engine.loaded,
            choose,
            min_version=body.min_version,
            client=call.request.scope.get("state", {}).get("client"),
            serialize=serialize,
        )
        deadline_ms = body.deadline_ms or self._default_deadline_ms(request.cost)
        request.deadline = call.received + deadline_ms / 1000
        try:
            return await self.engine.predict(request)
        except DeadlineExceeded as error:
            raise DeadlineExceeded(
                f"{error}; `deadline_ms` was {deadline_ms}: set a longer one, of at most"
                f" {self.limits.deadline_ms}, or send fewer queries at once"
            ) from error

    def _default_deadline_ms(self, cost: int) -> int:
        """Return the default for one plain query, plus a share for each further one in `cost`."""
        limits = self.limits
        further = (cost - 1) * limits.default_deadline_query_ms
        return min(limits.default_deadline_ms + further, limits.deadline_ms)

"""POST /predict: queries to keywords."""

from __future__ import annotations

from typing import Any

from service.core.errors import DeadlineExceeded
from service.core.label_filter import parse
from service.core.options import OPTIONS, PredictOptions
from service.core.prediction.predictor import EVIDENCE_ROWS
from service.core.types import Answer
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
        request = await self._request(call)
        options, limit = request.options, self.limits.answer_bytes
        rows = len(request.queries) * self._rows_of_query(options)
        if rows > FEW_ROWS:  # such an answer is reserved in advance and serialized by the threads
            call.hold.add(min(rows * KEYWORD_BYTES, limit))
            request.serialize = SerializedResults(explain=options.explain, limit=limit)
            bundle, answer = await self._answer(call, request)
            return large_predict_answer(answer, bundle=bundle)
        bundle, answer = await self._answer(call, request)
        if options.explain:  # without explanations, so few rows are never too large
            require_answer_fits(answer, explain=True, limit=limit)
        return predict_answer(answer, bundle=bundle, explain=options.explain)

    def _rows_of_query(self, options: PredictOptions) -> int:
        """Return the most keywords of a query's result, plus evidence and items if `explain`."""
        if not options.explain:
            return options.top_k
        memory, given = self.engine.view.items, options.items
        items = 0 if memory is None else memory.attended if given is None else len(given)
        return options.top_k * EVIDENCE_ROWS + items

    async def _request(self, call: Call[PredictBody]) -> QueryRequest:
        """Return the request with its options complete."""
        asked = {one.name: getattr(call.input, one.name) for one in OPTIONS}
        asked["tenant"] = call.tenant
        if asked["filter"] is not None:
            asked["filter"] = await self.side_thread.run_if(
                call.hold.size, parse, asked["filter"], at="filter", most=self.limits.filter_values
            )
        client = call.request.scope.get("state", {}).get("client")
        return QueryRequest(call.input.queries, self.engine.loaded, asked, client=client)

    async def _answer(self, call: Call[PredictBody], request: QueryRequest) -> tuple[str, Answer]:
        """Return the bundle's name and the answer; a deadline error names its field."""
        deadline_ms = request.options.deadline_ms or self._default_deadline_ms(request.cost)
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

"""POST /predict: queries to keywords."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from threading import Lock
from typing import Annotated, Any, NotRequired

import orjson
from pydantic import Field

from service.core.errors import AnswerTooLarge, DeadlineExceeded
from service.core.label_filter import json_bytes, parse
from service.core.options import OPTIONS, PredictOptions
from service.core.prediction.answers import ResultAnswer, result_answer
from service.core.prediction.predictor import EVIDENCE_ROWS
from service.core.types import Answer, Prediction, TypedDict, doc
from service.engine.reading.task_queue import QueryRequest
from service.http.bodies import StrictModel, Text, at_most, up_to, with_fields
from service.http.endpoint import Call, JsonAnswer, Routes, Version, route

KEYWORD_BYTES = 70  # of a keyword, in addition to its texts
EVIDENCE_BYTES = 90  # of a row of evidence, in addition to its text
FUSED_ITEM_BYTES = 80  # of a fused item, in addition to its id and text
# The most keywords, evidence and items of an answer that is not reserved in advance.
FEW_ROWS = 1_000


def _option_fields() -> Iterator[tuple[str, Any, Any]]:
    """Yield the declared options as fields of a body."""
    for option in OPTIONS:
        texts = option.kind == list[str]
        kind: Any = list[Text] if texts else option.kind
        kind = kind | None if option.default is None else kind
        if option.limit:
            kind = Annotated[kind, (at_most if texts else up_to)(option.limit)]
        yield option.name, kind, Field(option.default, description=option.description)


@with_fields(_option_fields())
class PredictRequest(StrictModel):
    """The body of POST /predict, with the declared options."""

    queries: Annotated[list[Text], at_most("queries")] = Field(
        min_length=1, description="The texts to match."
    )


class TimingAnswer(TypedDict):
    """Milliseconds by stage, summed over the parts of the request that ran in parallel."""

    queue: Annotated[float, doc("Waiting for a free thread.")]
    encode: Annotated[float, doc("Queries to vectors; 0 for cached queries.")]
    retrieve: Annotated[float, doc("Searching the nearest keys.")]
    score: Annotated[float, doc("Votes to ranked labels, and a second ranking.")]


class PredictAnswer(TypedDict):
    """The answer of POST /predict."""

    bundle: Annotated[str, doc("The name of the bundle that answered.")]
    version: Version
    results: Annotated[list[ResultAnswer], doc("One for each query, in the order of the queries.")]
    timing_ms: TimingAnswer
    warnings: NotRequired[
        Annotated[
            list[str],
            doc(
                "Conditions of the filter that never hold: no label has the field, or none has a"
                " value of the type that is asked for."
            ),
        ]
    ]


def filter_warnings(sentences: Iterable[str]) -> list[str]:
    """Return the `warnings` of an answer: sentences of a view about its filter."""
    return [f"filter: {sentence}" for sentence in sentences]


class SerializedResults:
    """Serializes an answer's results, query by query, in the answering threads.

    The objects of a large answer would all be freed at once and block all other answers meanwhile.
    """

    def __init__(self, *, explain: bool, limit: int) -> None:
        """Allow about `limit` bytes for all results of the answer together."""
        self._explain, self._limit = explain, limit
        self._size, self._lock = 0, Lock()

    def __call__(self, prediction: Prediction) -> bytes:
        """Return a query's result as JSON. Raises `AnswerTooLarge` before building too much."""
        with self._lock:
            self._size += _size(prediction, self._explain)
            size = self._size
        if size > self._limit:
            raise AnswerTooLarge(
                f"the answer would have at least {size} bytes, and {self._limit} are allowed; ask"
                " for fewer keywords, for fewer queries, or without `explain`",
                field="top_k",
            )
        return orjson.dumps(result_answer(prediction, explain=self._explain))


def predict_answer(answer: Answer, *, bundle: str) -> JsonAnswer:
    """Return the answer of POST /predict, which has a `PredictAnswer`."""
    parts = [b'{"bundle":%b,"version":%d,"results":[' % (orjson.dumps(bundle), answer.version)]
    for number, result in enumerate(answer.serialized):
        parts += [b"," if number else b"", result]
    parts.append(b'],"timing_ms":%b' % orjson.dumps(_timing(answer.seconds)))
    if answer.filter_warnings:
        parts.append(b',"warnings":%b' % orjson.dumps(filter_warnings(answer.filter_warnings)))
    parts.append(b"}")
    return JsonAnswer(*parts)


def _size(prediction: Prediction, explain: bool) -> int:
    """Estimate the bytes of a query's part of an answer."""
    size = sum(
        FUSED_ITEM_BYTES + len(item.id.encode()) + len(item.text.encode())
        for item in prediction.items or ()
    )
    size += sum(4 + len(one) for one in (*prediction.rules, *prediction.without_rules))
    for keyword in prediction.keywords:
        size += KEYWORD_BYTES + len(keyword.id) + len(keyword.text)
        if explain:
            size += json_bytes(keyword.metadata)
            size += sum(EVIDENCE_BYTES + len(row.text) for row in keyword.evidence)
    return size


def _timing(seconds: Mapping[str, float]) -> TimingAnswer:
    """Return the milliseconds of the four documented stages; three of them sum several stages."""

    def milliseconds(*stages: str) -> float:
        return round(1000 * sum(seconds.get(stage, 0.0) for stage in stages), 3)

    return {
        "queue": milliseconds("queue"),
        "encode": milliseconds("spell", "tokenize", "encode", "fuse"),
        "retrieve": milliseconds("filter", "retrieve"),
        "score": milliseconds("score", "rerank"),
    }


class PredictRoutes(Routes):
    """Answers queries."""

    @route("POST /predict", scope="read", refusals=(504,))
    async def predict(self, call: Call[PredictRequest]) -> PredictAnswer | JsonAnswer:
        """Match queries to keywords."""
        request = await self._request(call)
        options, limit = request.options, self.limits.answer_bytes
        rows = len(request.queries) * self._rows_of_query(options)
        if rows > FEW_ROWS:
            call.hold.add(min(rows * KEYWORD_BYTES, limit))
        request.serialize = SerializedResults(explain=options.explain, limit=limit)
        bundle, answer = await self._answer(call, request)
        return predict_answer(answer, bundle=bundle)

    def _rows_of_query(self, options: PredictOptions) -> int:
        """Return the most keywords of a query's result, plus evidence and items if `explain`."""
        if not options.explain:
            return options.top_k
        memory, given = self.engine.view.items, options.items
        items = 0 if memory is None else memory.attended if given is None else len(given)
        return options.top_k * EVIDENCE_ROWS + items

    async def _request(self, call: Call[PredictRequest]) -> QueryRequest:
        """Return the request with its options complete."""
        asked = {one.name: getattr(call.input, one.name) for one in OPTIONS}
        asked["tenant"] = call.tenant
        if asked["filter"] is not None:
            asked["filter"] = await self.side_thread.run_if(
                call.hold.size, parse, asked["filter"], at="filter", most=self.limits.filter_values
            )
        client = call.request.scope.get("state", {}).get("client")
        return QueryRequest(call.input.queries, self.engine.loaded, asked, client=client)

    async def _answer(
        self, call: Call[PredictRequest], request: QueryRequest
    ) -> tuple[str, Answer]:
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

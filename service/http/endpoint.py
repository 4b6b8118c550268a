"""A route, declared once: requests are served and documented from the same declaration.

`EndpointRoute` is a plain Starlette route inside the FastAPI application: FastAPI's own routes take
about a millisecond more of each request. It does for every route, in this order, what the
declaration says: check the API key, read and validate the body or the query string, read the
idempotency key, call the handler, serialise its answer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Generic, TypeVar

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from service.engine.writing.write_queue import RequestKey
from service.http.auth import Access
from service.http.idempotency import refuse_idempotency_key, request_key
from service.http.request_body import JSON, NDJSON, media_type, read_json
from service.http.responses import json_response

Input = TypeVar("Input", bound=BaseModel | None)


@dataclass(slots=True, kw_only=True)
class Call(Generic[Input]):
    """One request, after its API key and its input were accepted.

    `input` is the validated body or query string, None for a route without either. `received` is
    the time (of `monotonic`) at which the request arrived, before its body was read.
    """

    request: Request
    input: Input
    received: float
    idempotency: RequestKey | None = None


@dataclass(frozen=True, kw_only=True)
class LineStream:
    """The second form of a route: newline-delimited JSON in, newline-delimited JSON out."""

    line: type[BaseModel]  # one line of the request
    answer: Any  # one line of the answer
    handler: Callable[[Request], Response]


@dataclass(frozen=True, kw_only=True)
class Endpoint(Generic[Input]):
    """The declaration of one route.

    The handler returns a value of the type `answer`, or a `Response` where it needs another status
    or media type. `refusals` are the statuses of the handler's own problems; those that follow from
    the other fields (such as 401 from `scope`) are added by `problem_statuses`.
    """

    method: str
    path: str  # as Starlette writes it: "/labels/{label_id:label_id}"
    summary: str
    handler: Callable[[Call[Input]], Awaitable[Any]]
    scope: str | None = None  # that the API key must have; None: no key is needed
    body: type[Input] | None = None
    body_required: bool = True  # False: an empty body stands for {}
    query: type[Input] | None = None
    path_parameters: Mapping[str, str] = field(default_factory=dict)  # name -> description
    idempotent: bool = False  # the route takes the header Idempotency-Key
    stream: LineStream | None = None
    answer: Any = None  # the type of the JSON answer; None where the answer is not JSON
    answer_media_type: str = JSON
    refusals: tuple[int, ...] = ()

    @property
    def problem_statuses(self) -> list[int]:
        """Every status with which the route may refuse a request, ascending."""
        statuses = set(self.refusals)
        if self.scope is not None:
            statuses |= {401, 403}
        if self.body is not None:
            statuses |= {400, 413, 415, 422}
        if self.query is not None:
            statuses |= {422}
        if self.idempotent:
            statuses |= {409, 422}
        return sorted(statuses)


class EndpointRoute(Route):
    """Serves one endpoint, under its method alone."""

    def __init__(self, endpoint: Endpoint[Any], *, access: Access, body_bytes: int) -> None:
        """`access` checks API keys; a body may have at most `body_bytes` bytes."""
        super().__init__(endpoint.path, self._serve, name=endpoint.handler.__name__)
        # Starlette would wrap the function, which makes a second Request, and answer HEAD like GET.
        self.app = self._serve
        self.methods = {endpoint.method}
        self._endpoint, self._access, self._body_bytes = endpoint, access, body_bytes

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request of this path; another method than the endpoint's is a 405."""
        scope["route"] = self  # for the metrics; FastAPI sets it for routes of its own kind only
        await super().handle(scope, receive, send)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        received = monotonic()
        request = Request(scope, receive)
        endpoint = self._endpoint
        key_name = ""
        if endpoint.scope is not None:
            key_name = self._access.check(request.headers.get("authorization"), endpoint.scope)
        if endpoint.stream is not None and media_type(request, JSON, NDJSON) == NDJSON:
            refuse_idempotency_key(request)
            await endpoint.stream.handler(request)(scope, receive, send)
            return
        call = Call(request=request, input=await self._input(request), received=received)
        if endpoint.idempotent:
            call.idempotency = request_key(request, call.input, key_name=key_name)
        answer = await endpoint.handler(call)
        response = answer if isinstance(answer, Response) else json_response(answer)
        await response(scope, receive, send)

    async def _input(self, request: Request) -> BaseModel | None:
        endpoint = self._endpoint
        if endpoint.body is not None:
            default = b"" if endpoint.body_required else b"{}"
            body: BaseModel = await read_json(
                request, endpoint.body, limit=self._body_bytes, default=default
            )
            return body
        if endpoint.query is not None:
            query: BaseModel = endpoint.query.model_validate(dict(request.query_params))
            return query
        return None

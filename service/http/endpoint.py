"""A route, declared once: requests are served and documented from the same declaration.

`EndpointRoute` is a plain Starlette route inside the FastAPI application: FastAPI's own routes take
about a millisecond more of each request. It does for every route, in this order, what the
declaration says: check the API key, read and validate the body or the query string, read the
idempotency key, call the handler, serialise its answer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import Any, Generic, TypeVar

from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from service.core.errors import KeymatchError
from service.engine.writing.write_queue import RequestKey
from service.http import problems
from service.http.auth import Access
from service.http.bounded_model import BoundedModel
from service.http.idempotency import HEADER, refuse_idempotency_key, request_key
from service.http.large.held_bytes import HeldBytes, Hold
from service.http.request_body import JSON, NDJSON, header, media_type, read_json
from service.http.responses import PIECE_BYTES, JsonAnswer
from service.http.side_thread import SideThread
from service.telemetry import Telemetry

_KEY_HEADER = HEADER.lower().encode()

Input = TypeVar("Input", bound=BaseModel | None)


@dataclass(slots=True, kw_only=True)
class Call(Generic[Input]):
    """One request, after its API key and its input were accepted.

    `input` is the validated body or query string, None for a route without either. `received` is
    the time (of `monotonic`) at which the request arrived, before its body was read. `hold` counts
    what the request holds of the worker's memory, until its answer is sent.
    """

    request: Request
    input: Input
    received: float
    hold: Hold
    idempotency: RequestKey | None = None


@dataclass(frozen=True, kw_only=True)
class LineStream:
    """The second form of a route: newline-delimited JSON in, newline-delimited JSON out."""

    line: type[BaseModel]  # one line of the request
    answer: Any  # one line of the answer
    handler: Callable[[Request, Hold], Response]


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
    description: str = ""  # what the summary leaves out
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
            statuses |= {400, 413, 415, 422, 429}
        if self.query is not None:
            statuses |= {422}
        if self.scope == "read":
            statuses |= {429}
        if self.idempotent:
            statuses |= {409, 422}
        return sorted(statuses)


class EndpointRoute(Route):
    """Serves one endpoint, under its method alone."""

    def __init__(
        self,
        endpoint: Endpoint[Any],
        *,
        allowed: Iterable[str],
        access: Access,
        body_bytes: int,
        telemetry: Telemetry,
        side_thread: SideThread,
        held_bytes: HeldBytes,
    ) -> None:
        """`allowed` are the methods of all endpoints of this path; `access` checks API keys.

        A body may have at most `body_bytes` bytes; `side_thread` parses what is large, which counts
        in `held_bytes`.
        """
        super().__init__(endpoint.path, self.serve, name=endpoint.handler.__name__)
        # Starlette would wrap the function, which makes a second Request, and answer HEAD like GET.
        self.app = self.serve
        self.methods = {endpoint.method}
        self._allow = {"Allow": ", ".join(sorted(allowed))}
        self._endpoint, self._access, self._body_bytes = endpoint, access, body_bytes
        self._telemetry, self._side_thread = telemetry, side_thread
        self._held_bytes = held_bytes
        self._body, self._query = _bounded(endpoint.body), _bounded(endpoint.query)

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request of this path; another method than the endpoint's is a 405."""
        scope["route"] = self  # for the metrics; FastAPI sets it for routes of its own kind only
        if scope["method"] != self._endpoint.method:
            raise HTTPException(405, headers=self._allow)
        await self.serve(scope, receive, send)

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request of this endpoint's method and path."""
        hold = self._held_bytes.hold()
        try:
            try:
                response = await self._answer(scope, receive, monotonic(), hold)
            except KeymatchError as error:
                reason = problems.reason(error)
                if reason:
                    self._telemetry.rejected.labels(reason).inc()
                response = problems.from_error(error)
                problems.forget_frames(error)
            await response(scope, receive, send)
        finally:
            hold.release()

    async def _answer(self, scope: Scope, receive: Receive, received: float, hold: Hold) -> ASGIApp:
        """Return what answers the request; `received` is the time of its arrival."""
        endpoint, key_name = self._endpoint, ""
        if endpoint.scope is not None:
            key_name = self._access.check(header(scope, b"authorization"), endpoint.scope)
        request = Request(scope, receive)
        if endpoint.stream is not None and media_type(scope, JSON, NDJSON) == NDJSON:
            refuse_idempotency_key(request)
            return endpoint.stream.handler(request, hold)
        body = await self._input(request, hold)
        call = Call(request=request, input=body, received=received, hold=hold)
        if endpoint.idempotent:
            key = partial(request_key, request, body, key_name=key_name)
            large = hold.size and header(scope, _KEY_HEADER)
            call.idempotency = await self._side_thread.run(key) if large else key()
        answer = await endpoint.handler(call)
        if isinstance(answer, Response):
            return answer
        answer = answer if isinstance(answer, JsonAnswer) else JsonAnswer(answer)
        # The input is held no longer. What was written is answered, whatever is held.
        size = answer.size if answer.size > PIECE_BYTES else 0
        hold.become(size, must=endpoint.scope != "read")
        return answer

    async def _input(self, request: Request, hold: Hold) -> BaseModel | None:
        endpoint = self._endpoint
        if self._body is not None:
            return await read_json(
                request.scope,
                request.receive,
                self._body,
                limit=self._body_bytes,
                hold=hold,
                side_thread=self._side_thread,
                default=b"" if endpoint.body_required else b"{}",
            )
        if self._query is not None:
            return self._query.validate(dict(request.query_params))
        return None


def _bounded(model: type[BaseModel] | None) -> BoundedModel[BaseModel] | None:
    return None if model is None else BoundedModel(model)

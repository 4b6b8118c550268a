"""Routes, each declared once: the declaration both serves and documents requests.

To add a route: a method of a resource's `Routes` with `route`, whose signature names its body and
its answer. Both are declared in the same module. A new module is listed in `RESOURCES` of `app.py`,
a new error in the table of `problems.py`, and its status in the route's `refusals`.
`tests/contract/test_openapi.py` lists each route with its statuses.

`EndpointRoute` is a plain Starlette route inside the FastAPI application: FastAPI's own routes add
about a millisecond per request. As declared, it checks the API key, reads and validates the body or
the query string, reads the idempotency key, calls the handler, and serializes its answer.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from time import monotonic
from types import NoneType
from typing import Annotated, Any, Generic, TypeVar, get_args, get_type_hints
from urllib.parse import unquote_to_bytes

import orjson
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from service.core.changes import DeleteItem, DeleteLabel, DeleteRule
from service.core.errors import DatePassed, Forbidden, InvalidInput, KeymatchError
from service.core.tenant import Tenant
from service.core.types import TypedDict, doc
from service.engine.engine import Engine
from service.engine.writing.operations import DeleteOne, Refuse, RequestKey, Written
from service.http import problems
from service.http.access import ANYONE, Access, Sites
from service.http.bodies import StrictModel, limited, read_each
from service.http.bounded_model import BoundedModel
from service.http.request_body import (
    JSON,
    NDJSON,
    HeldBytes,
    Hold,
    SideThread,
    header,
    is_gzip,
    media_type,
    read_json,
)
from service.settings import Limits
from service.telemetry import Telemetry

HEADER = "Idempotency-Key"
# The header Idempotency-Key in the OpenAPI document.
HEADER_PARAMETER = {
    "name": HEADER,
    "in": "header",
    "required": False,
    "schema": {"type": "string", "minLength": 1, "maxLength": 255},
    "description": (
        "Makes a write safe to repeat: a request with the same key and the same content gets the"
        " answer of the first one and changes nothing; with other content it is a 409. 1 to 255"
        " visible ASCII characters; a key is remembered for a day."
    ),
}
_KEY = re.compile(r"[\x21-\x7e]{1,255}")
_KEY_HEADER = HEADER.lower().encode()

PIECE_BYTES = 131_072  # of an answer that are passed to the server at once
DECLARED = "declared"  # the attribute of a handler that `route` sets

Input = TypeVar("Input", bound=BaseModel | None)
Entry = TypeVar("Entry")
Handler = TypeVar("Handler", bound=Callable[..., Awaitable[Any]])


def request_key(request: Request, body: BaseModel | None, *, client: str) -> RequestKey | None:
    """Return the idempotency key of a request, or None.

    Two clients may use the same key, so it is stored behind `client` (see `ApiKey.client`).
    Requests with equal methods, paths and validated bodies are the same; white space and the order
    of fields do not count. Raises `InvalidInput` if the key is too long or not visible ASCII.
    """
    key = request.headers.get(HEADER)
    if key is None:
        return None
    if not _KEY.fullmatch(key):
        raise InvalidInput("must be 1 to 255 visible ASCII characters", field=HEADER)
    content = b"{}" if body is None else _content(body)
    # The routed path: `request.url.path` lacks tabs, line breaks, and everything after a "?".
    path: str = request.scope["path"]
    named = f"{request.method} {path}\0".encode()
    digest = hashlib.sha256(named + content).hexdigest()
    return RequestKey(key=client + key, digest=digest)


def _content(body: BaseModel) -> bytes:
    """Return a body as JSON. Lists are serialized entry by entry: one call would hold the GIL."""
    later = body.later if isinstance(body, StrictModel) else ()
    document = {
        name: _as_json(value)
        for name, value in body
        if not (name in later and value == type(body).model_fields[name].default)
    }
    return orjson.dumps(document, option=orjson.OPT_SORT_KEYS)


def _as_json(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return orjson.Fragment(_content(value))
    if isinstance(value, list) and value and isinstance(value[0], BaseModel):
        return [orjson.Fragment(_content(entry)) for entry in value]
    return value


class JsonAnswer:
    """A 200 with a JSON body: an ASGI application that is faster than Starlette's response."""

    def __init__(self, *parts: bytes) -> None:
        """Answer with a body of these parts. Long parts are never joined."""
        self._parts = parts
        self.size = sum(map(len, parts))  # of the body, in bytes

    async def __call__(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        """Send the answer. Several pieces are sent as fast as the client reads them."""
        headers = [
            (b"content-length", b"%d" % self.size),
            (b"content-type", b"application/json"),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        if self.size <= PIECE_BYTES:
            await send({"type": "http.response.body", "body": b"".join(self._parts)})
            return
        for part in self._parts:  # an empty part yields no piece
            for place in range(0, len(part), PIECE_BYTES):
                piece = part[place : place + PIECE_BYTES]
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


Version = Annotated[
    int,
    doc(
        "Memory version: the sequence number of the newest write that is included; 0"
        " for a bundle without writes."
    ),
]


class VersionAnswer(TypedDict):
    """The memory version from which a write is visible."""

    version: Version


@dataclass(slots=True, kw_only=True)
class Call(Generic[Input]):
    """One request whose API key and input were accepted."""

    request: Request
    input: Input  # the validated body or query string, None for a route without either
    received: float  # when the request arrived, before its body was read, by `monotonic`
    hold: Hold  # memory that the request reserves until its answer is sent
    idempotency: RequestKey | None = None
    tenant: Tenant | None = None  # of the API key; None sees everything

    @property
    def path_id(self) -> str:
        """The id in the path, the only parameter that a path has."""
        [path_id] = self.request.path_params.values()
        return str(path_id)


@dataclass(frozen=True, kw_only=True)
class Endpoint(Generic[Input]):
    """The declaration of one route.

    The handler returns a value of the type `answer`, or a `Response` if it needs another status or
    media type.
    """

    route: str  # method and path, as Starlette writes it: "GET /labels/{label_id:label_id}"
    summary: str
    handler: Callable[[Call[Input]], Awaitable[Any]]
    description: str = ""  # details beyond the summary
    scope: str  # that the API key must have; empty: no key is needed
    for_tenants: bool = True  # whether an API key of a tenant may use the route
    body: type[Input] | None = None
    body_required: bool = True  # False: an empty body means {}
    query: type[Input] | None = None
    # A second form of the route, newline-delimited JSON, with the types of a line of each.
    stream: Callable[[Hold, Tenant | None], ASGIApp] | None = None
    line: type[BaseModel] | None = None
    line_answer: Any = None
    answer: Any = None  # the type of the JSON answer; None if the answer is not JSON
    answer_media_type: str = JSON
    refusals: tuple[int, ...] = ()  # problem statuses in addition to those that other fields imply

    @property
    def path(self) -> str:
        """The path, with a pattern for its parameter."""
        return self.route.partition(" ")[2]

    @property
    def methods(self) -> set[str]:
        """The method, and for GET also HEAD, whose body the server leaves out."""
        method = self.route.partition(" ")[0]
        return {method, "HEAD"} if method == "GET" else {method}

    @property
    def idempotent(self) -> bool:
        """Whether the route takes the header Idempotency-Key, as every write does."""
        return self.scope == "write"

    @property
    def has_path_id(self) -> bool:
        """Whether the path names one label or item."""
        return "{" in self.path

    @property
    def problem_statuses(self) -> list[int]:
        """All statuses with which the route may refuse a request, ascending."""
        statuses = set(self.refusals)
        if self.scope:
            statuses |= {401, 403}
        if self.scope in ("read", "write", "admin"):  # routes that use the engine
            statuses |= {503}
        if self.body is not None:
            statuses |= {400, 413, 415, 422, 429}
        if self.query is not None:
            statuses |= {422}
        if self.has_path_id:
            statuses |= {404, 422}
        if self.scope == "read":
            statuses |= {429}
        if self.scope == "write":
            statuses |= {409, 422, 429, 504}
            statuses |= {507} if self.body is not None else set()
        return sorted(statuses)


class EndpointRoute(Route):
    """Serves one endpoint."""

    def __init__(
        self,
        endpoint: Endpoint[Any],
        *,
        allowed: Iterable[str],
        access: Access,
        sites: Sites,
        body_bytes: int,
        telemetry: Telemetry,
        side_thread: SideThread,
        held_bytes: HeldBytes,
    ) -> None:
        """Serve `endpoint`; `allowed` are the methods of all endpoints of its path.

        A body may have at most `body_bytes` bytes. Large bodies count in `held_bytes`, and
        `side_thread` parses them.
        """
        super().__init__(endpoint.path, self.serve, name=endpoint.handler.__name__)
        # Set directly: Starlette would wrap the function and create a second Request.
        self.app = self.serve
        self.methods = endpoint.methods
        self._allowed = ", ".join(sorted(allowed))
        self._sites = sites
        self._endpoint, self._access, self._body_bytes = endpoint, access, body_bytes
        self._telemetry, self._side_thread = telemetry, side_thread
        self._held_bytes = held_bytes
        self._body, self._query = _bounded(endpoint.body), _bounded(endpoint.query)

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request of this path; methods other than those of a preflight get 405."""
        scope["route"] = self  # for the metrics; FastAPI sets it for routes of its own kind only
        if scope["method"] not in self._endpoint.methods:
            allowed = self._sites.preflight(scope, self._allowed)
            if allowed is None:
                raise HTTPException(405, headers={"Allow": self._allowed})
            head = {"type": "http.response.start", "status": 204, "headers": [*allowed]}
            await send(head)
            await send({"type": "http.response.body"})
            return
        await self.serve(scope, receive, send)

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request of this endpoint's methods and path."""
        hold = Hold(self._held_bytes)
        try:
            try:
                response = await self._answer(scope, receive, monotonic(), hold)
            except KeymatchError as error:
                problems.count(error, self._telemetry)
                response = problems.from_error(error)
                problems.forget_frames(error)
            await response(scope, receive, send)
        finally:
            hold.release()

    async def _answer(self, scope: Scope, receive: Receive, received: float, hold: Hold) -> ASGIApp:
        """Return the answer to a request that arrived at `received`."""
        endpoint, key = self._endpoint, ANYONE
        if endpoint.scope:
            key = self._access.check(header(scope, b"authorization"), endpoint.scope)
            if key.tenant is not None and not endpoint.for_tenants:
                raise Forbidden("a tenant cannot use this route")
        request = Request(scope, receive)
        if endpoint.has_path_id:
            require_utf8(scope["raw_path"], "path")
        if endpoint.stream is not None and media_type(scope, JSON, NDJSON) == NDJSON:
            if HEADER in request.headers:
                raise InvalidInput(
                    "a stream takes no idempotency key and needs none: each line creates or"
                    " replaces the label of its id, so the same stream can be sent again",
                    field=HEADER,
                )
            is_gzip(scope)  # raises, if at all, before the answer begins
            return endpoint.stream(hold, key.tenant)
        body = await self._input(request, hold)
        call = Call(request=request, input=body, received=received, hold=hold, tenant=key.tenant)
        if endpoint.idempotent:
            call.idempotency = await self._side_thread.run_if(
                hold.size and header(scope, _KEY_HEADER),
                partial(request_key, request, body, client=key.client),
            )
        answer = await endpoint.handler(call)
        if isinstance(answer, Response):
            return answer
        answer = answer if isinstance(answer, JsonAnswer) else JsonAnswer(orjson.dumps(answer))
        # The input's memory is free again. A write is always answered, even beyond the limit.
        size = answer.size if answer.size > PIECE_BYTES else 0
        hold.become(size, must=endpoint.scope != "read")
        return answer

    async def _input(self, request: Request, hold: Hold) -> BaseModel | None:
        if self._body is not None:
            return await read_json(
                request.scope,
                request.receive,
                self._body,
                limit=self._body_bytes,
                hold=hold,
                side_thread=self._side_thread,
                default=b"" if self._endpoint.body_required else b"{}",
            )
        if self._query is not None:
            require_utf8(request.scope["query_string"], "query")
            return self._query.validate(dict(request.query_params))
        return None


def _bounded(model: type[BaseModel] | None) -> BoundedModel[BaseModel] | None:
    return None if model is None else BoundedModel(model)


def require_utf8(percent_encoded: bytes, where: str) -> None:
    """Raise `InvalidInput` for a part of a URL that is not UTF-8.

    The server and the framework would replace invalid bytes, and thus name another label.
    """
    try:
        percent_encoded.decode("ascii")
        unquote_to_bytes(percent_encoded).decode()
    except UnicodeDecodeError as error:
        raise InvalidInput(
            f"the {where} of the URL is not UTF-8: percent-encode the bytes of the text in UTF-8",
            field=where,
        ) from error


@dataclass(frozen=True, kw_only=True)
class Routes:
    """Base class of a resource's routes: a subclass has the handlers, each declared by `route`."""

    engine: Engine
    limits: Limits
    telemetry: Telemetry
    metrics_scope: str  # that an API key must have for /metrics; empty: no key is needed
    side_thread: SideThread
    leaving: Callable[[], bool]  # returns whether load balancers are to send no more requests
    draining: Callable[[], bool]  # returns whether the process ends

    def endpoints(self) -> Iterator[Endpoint[Any]]:
        """Yield the declared routes, under the configured limits."""
        for name, handler in vars(type(self)).items():
            if hasattr(handler, DECLARED):
                yield self._endpoint(getattr(self, name), dict(getattr(handler, DECLARED)))

    def _endpoint(
        self, handler: Callable[[Call[Any]], Awaitable[Any]], declared: dict[str, Any]
    ) -> Endpoint[Any]:
        """Return a route. Its documentation is the handler's, and its types the signature's."""
        summary, _, description = (handler.__doc__ or "").partition("\n\n")
        called, answer = get_type_hints(handler, include_extras=True).values()
        answers = [one for one in get_args(answer) or [answer] if not _is_response(one)]
        [model] = get_args(called)
        if model is not NoneType:
            read = "query" if declared["route"].startswith("GET") else "body"
            declared[read] = limited(model, self.limits)
        if "stream" in declared:
            declared["stream"] = partial(declared["stream"], self)
            declared["line"] = limited(declared["line"], self.limits)
        if declared["scope"] == "metrics":
            declared["scope"] = self.metrics_scope
        return Endpoint(
            summary=summary.removesuffix("."),
            description=" ".join(description.split()),
            handler=handler,
            answer=answers[0] if answers else None,
            **declared,
        )

    async def write_each(
        self,
        call: Call[Any],
        name: str,
        read: Callable[[Any], Entry],
        write: Callable[[Sequence[Entry]], Awaitable[Written]],
    ) -> Written:
        """Read each entry of the list `name` of a body, and write all or none."""
        try:
            # In a thread for a large body: its labels may have many queries.
            entries = await self.side_thread.run_if(
                call.hold.size, read_each, name, getattr(call.input, name), read
            )
        except DatePassed as error:
            return await self.engine.write(Refuse(error=error), request=call.idempotency)
        return await write(entries)

    async def delete(
        self, call: Call[None], change: type[DeleteLabel | DeleteItem | DeleteRule]
    ) -> VersionAnswer:
        """Delete the label, item or rule that the path names."""
        operation = DeleteOne(change=change, id=call.path_id, tenant=call.tenant)
        written = await self.engine.write(operation, request=call.idempotency)
        return {"version": written.version}


def _is_response(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Response | JsonAnswer)


def route(method_and_path: str, **declared: Any) -> Callable[[Handler], Handler]:
    """Declare a method of `Routes` as the handler of a route, with fields of its `Endpoint`.

    The first line of its docstring is the summary in /docs, and the rest the description. The
    signature has the types of body (of a GET, the query string) and answer. Unless a scope is
    given, a GET needs `read` and all others `write`.
    """

    scope = "read" if method_and_path.startswith("GET") else "write"

    def declare(handler: Handler) -> Handler:
        setattr(handler, DECLARED, {"route": method_and_path, "scope": scope, **declared})
        return handler

    return declare

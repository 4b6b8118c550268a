"""Layers between a connection and the routes: exact paths, logging, and early refusals.

- `Application` serves exact paths directly; FastAPI finds all other routes.
- `RequestMiddleware` adds a request's id, duration, metrics and log line, and answers defects.
- `Refusals` builds answers without the application, in which even a 429 costs a good part of an
  answer's time. `service/server/connection.py` uses it if the queue refuses a POST /predict, and
  for input that is not a valid request.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from random import Random
from time import perf_counter
from typing import Any

from fastapi import FastAPI
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.core.errors import KeymatchError, NotReady
from service.http import problems
from service.http.access import Headers, Sites
from service.http.endpoint import EndpointRoute
from service.http.request_body import header
from service.telemetry import Telemetry

PATH = b"/predict"  # the path of requests that are refused early
MOST_ANSWERS = 256  # prebuilt refusals that are cached
RECORD_SECONDS = 0.25  # between two additions to the metrics, and two lines of the log
# The scope entry whose headers replace `STRICT`, for the page that browsers may show.
SCOPE_KEY = "keymatch.answer_headers"
UNMATCHED = "unmatched"  # route in the metrics if the path is unknown
CLIENT_LEFT = 499  # status in the metrics if the client left before the answer
STOPPED = "the service has stopped; whether a write was made is unknown"
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")

log = logging.getLogger("keymatch.access")


def answer_headers(content_security_policy: str) -> Headers:
    """Return headers against sniffing, caching, embedding and leaking an answer."""
    return (
        (b"content-security-policy", content_security_policy.encode()),
        (b"x-content-type-options", b"nosniff"),
        (b"cache-control", b"no-store"),
        (b"cross-origin-resource-policy", b"same-origin"),
        (b"referrer-policy", b"no-referrer"),
    )


# For answers other than pages: browsers must not run, load or frame anything in them.
STRICT = answer_headers("default-src 'none'; frame-ancestors 'none'")


class RequestMiddleware:
    """Plain ASGI middleware: it takes microseconds, less than Starlette's base class."""

    def __init__(self, app: ASGIApp, *, sites: Sites, telemetry: Telemetry) -> None:
        self._app, self._sites, self._telemetry = app, sites, telemetry
        self._random = Random()  # ids need to be distinct, not secret

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start, request_id, status = perf_counter(), request_id_of(scope, self._random), 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [
                    *message["headers"],
                    *scope.get(SCOPE_KEY, STRICT),
                    *self._sites.headers(scope),
                    (b"x-request-id", request_id),
                ]
            await send(message)

        try:
            foreign = self._sites.refusal(scope)
            if foreign is None:
                await self._app(scope, receive, send_with_id)
            else:
                problems.count(foreign, self._telemetry)
                await problems.from_error(foreign)(scope, receive, send_with_id)
        except asyncio.CancelledError:
            # The server cancels unanswered requests when the time to shut down is over.
            if not status:
                await problems.from_error(NotReady(STOPPED))(scope, receive, send_with_id)
        except Exception as error:
            answer = problems.from_error(error)
            if not status:
                await answer(scope, receive, send_with_id)
        finally:
            self._record(scope, request_id, status or CLIENT_LEFT, perf_counter() - start)

    def _record(self, scope: Scope, request_id: bytes, status: int, seconds: float) -> None:
        # The route's pattern, never the path: a metric's label must have few values.
        route = getattr(scope.get("route"), "path", UNMATCHED)
        self._telemetry.observe_request(route, status, seconds)
        if not log.isEnabledFor(logging.INFO):
            return
        log.info(
            "request",
            extra={
                "request_id": request_id.decode(),
                "method": scope["method"],
                "route": route,
                "status": status,
                "milliseconds": round(seconds * 1000, 3),
            },
        )


def direct_routes(
    routes: Sequence[EndpointRoute], *, sites: Sites, telemetry: Telemetry
) -> dict[tuple[str, str], ASGIApp]:
    """Map method and path to the route's application; routes with path parameters are left out."""
    return {
        (method, route.path): RequestMiddleware(route.handle, sites=sites, telemetry=telemetry)
        for route in routes
        if not route.param_convertors
        for method in route.methods or ()
    }


class Application(FastAPI):
    """Serves exact paths directly, and /openapi.json from the endpoints."""

    def __init__(
        self,
        *,
        direct: Mapping[tuple[str, str], ASGIApp],
        document: Callable[[], dict[str, Any]],
        **options: Any,
    ) -> None:
        super().__init__(docs_url=None, redoc_url=None, **options)
        self._direct, self._document = direct, document

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or run the application's start and end."""
        direct = self._direct.get((scope.get("method", ""), scope.get("path", "")))
        await (direct or super().__call__)(scope, receive, send)

    def openapi(self) -> dict[str, Any]:
        """Return the OpenAPI document."""
        return self._document()


class Refusals:
    """Builds the answers of refused requests and counts them; belongs to the event loop."""

    def __init__(self, telemetry: Telemetry, sites: Sites) -> None:
        """Count refusals in this process's metrics; `sites` may read the answers."""
        self._telemetry, self._sites, self._random = telemetry, sites, Random()
        # Answers by error class and message, which becomes the answer's `detail`.
        self._answers: dict[tuple[type[KeymatchError], str], tuple[int, bytes, bytes]] = {}
        # Counts by route, status and reason since the last recording.
        self._counts: dict[tuple[str, int, str], int] = {}

    def answer(self, scope: Scope, error: KeymatchError, *, keep_alive: bool) -> bytes:
        """Count a refusal; returns the HTTP/1.1 answer that the application would give."""
        request_id = request_id_of(scope, self._random)
        for_pages = self._sites.headers(scope)
        return self._answer(PATH.decode(), request_id, error, keep_alive, for_pages)

    def last_answer(self, error: KeymatchError) -> bytes:
        """Return and count the answer to an invalid request, after which the connection ends."""
        return self._answer(UNMATCHED, new_request_id(self._random), error, keep_alive=False)

    def _answer(
        self,
        route: str,
        request_id: bytes,
        error: KeymatchError,
        keep_alive: bool,
        headers: Headers = (),
    ) -> bytes:
        key = (type(error), str(error))
        if key not in self._answers:
            if len(self._answers) >= MOST_ANSWERS:  # some messages contain changing numbers
                self._answers.clear()
            self._answers[key] = _prebuilt(error)
        status, before, after = self._answers[key]
        if not self._counts:
            asyncio.get_running_loop().call_later(RECORD_SECONDS, self.record)
        counted = (route, status, problems.reason(error) or "refused")
        self._counts[counted] = self._counts.get(counted, 0) + 1
        close = b"" if keep_alive else b"\r\nconnection: close"
        further = [b"\r\n%b: %b" % header for header in headers]
        return b"".join((before, request_id, *further, close, after))

    def record(self) -> None:
        """Add the counts to the metrics, and log one line per kind."""
        counts, self._counts = self._counts, {}
        for (route, status, reason), count in counts.items():
            self._telemetry.rejected.labels(reason).inc(count)
            self._telemetry.requests.labels(route, status).inc(count)
            log.info(
                "requests refused by their header",
                extra={"route": route, "status": status, "reason": reason, "requests": count},
            )


def _prebuilt(error: KeymatchError) -> tuple[int, bytes, bytes]:
    """Return the status of the answer to `error`, and its bytes before and after the request id."""
    response = problems.from_error(error)
    status = response.status_code
    head = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n".encode()
    for name, value in (*response.raw_headers, *STRICT):
        head += name + b": " + value + b"\r\n"
    return status, head + b"x-request-id: ", b"\r\n\r\n" + bytes(response.body)


def request_id_of(scope: Scope, random: Random) -> bytes:
    """Return the header X-Request-Id if it is 1 to 128 plain characters, else a new id."""
    given = header(scope, b"x-request-id")
    if given is not None and _REQUEST_ID.fullmatch(given):
        return given
    return new_request_id(random)


def new_request_id(random: Random) -> bytes:
    """Return a random request id."""
    return b"%016x" % random.getrandbits(64)

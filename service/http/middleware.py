"""Around every request: its id, its duration, its metrics and one log line; never a bare 500."""

from __future__ import annotations

import logging
import re
import secrets
from time import perf_counter

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.http import problems
from service.telemetry import Telemetry

UNMATCHED = "unmatched"  # stands for the route of a request whose path is unknown
CLIENT_LEFT = 499  # stands for the status of a request that was not answered
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")

log = logging.getLogger("keymatch.access")


class RequestMiddleware:
    """Plain ASGI middleware, which costs microseconds where Starlette's base class costs more."""

    def __init__(self, app: ASGIApp, *, telemetry: Telemetry) -> None:
        self._app, self._telemetry = app, telemetry

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start, request_id, status = perf_counter(), _request_id(scope), 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", request_id)]
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except Exception as error:
            answer = problems.from_defect(error)
            if not status:
                await answer(scope, receive, send_with_id)
        finally:
            self._record(scope, request_id, status or CLIENT_LEFT, perf_counter() - start)

    def _record(self, scope: Scope, request_id: bytes, status: int, seconds: float) -> None:
        # The route's pattern, never the path: the values of a metric's label are a fixed set.
        route = getattr(scope.get("route"), "path", UNMATCHED)
        self._telemetry.requests.labels(route, status).inc()
        self._telemetry.request_seconds.labels(route).observe(seconds)
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


def _request_id(scope: Scope) -> bytes:
    """The header X-Request-Id if it is 1 to 128 plain characters, else a new id."""
    for name, value in scope["headers"]:
        if name == b"x-request-id" and _REQUEST_ID.fullmatch(value):
            return bytes(value)
    return secrets.token_hex(8).encode()

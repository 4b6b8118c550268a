"""Around every request: its id, its duration, its metrics and one log line; never a bare 500."""

from __future__ import annotations

import asyncio
import logging
import re
from random import Random
from time import perf_counter

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.core.errors import NotReady
from service.http import problems
from service.http.browser.headers import SCOPE_KEY, STRICT
from service.http.browser.sites import Sites
from service.http.request_body import header
from service.telemetry import Telemetry

UNMATCHED = "unmatched"  # stands for the route of a request whose path is unknown
CLIENT_LEFT = 499  # stands for the status of a request that was not answered
STOPPED = "the service has stopped; whether a write was made is unknown"
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")

log = logging.getLogger("keymatch.access")


class RequestMiddleware:
    """Plain ASGI middleware, which costs microseconds where Starlette's base class costs more."""

    def __init__(self, app: ASGIApp, *, sites: Sites, telemetry: Telemetry) -> None:
        self._app, self._sites, self._telemetry = app, sites, telemetry
        self._random = Random()  # ids tell requests apart, and are no secrets

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
                    (b"x-request-id", request_id),
                ]
            await send(message)

        try:
            foreign = self._sites.refusal(scope)
            if foreign is None:
                await self._app(scope, receive, send_with_id)
            else:
                self._telemetry.rejected.labels(problems.reason(foreign)).inc()
                await problems.from_error(foreign)(scope, receive, send_with_id)
        except asyncio.CancelledError:
            # The server cancels what is not answered when the time to shut down is over.
            if not status:
                await problems.from_error(NotReady(STOPPED))(scope, receive, send_with_id)
        except Exception as error:
            answer = problems.from_defect(error)
            if not status:
                await answer(scope, receive, send_with_id)
        finally:
            self._record(scope, request_id, status or CLIENT_LEFT, perf_counter() - start)

    def _record(self, scope: Scope, request_id: bytes, status: int, seconds: float) -> None:
        # The route's pattern, never the path: the values of a metric's label are a fixed set.
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


def request_id_of(scope: Scope, random: Random) -> bytes:
    """The header X-Request-Id if it is 1 to 128 plain characters, else a new id from `random`."""
    given = header(scope, b"x-request-id")
    if given is not None and _REQUEST_ID.fullmatch(given):
        return given
    return new_request_id(random)


def new_request_id(random: Random) -> bytes:
    """An id that no other request has."""
    return b"%016x" % random.getrandbits(64)

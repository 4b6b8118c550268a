"""The web application around one engine: its routes, its middleware and its life."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib.metadata import version
from typing import Any

from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response

from service.core.errors import KeymatchError
from service.engine.engine import Engine
from service.engine.status import State
from service.http import problems
from service.http.auth import Access
from service.http.docs import documentation_routes
from service.http.endpoint import EndpointRoute
from service.http.middleware import RequestMiddleware
from service.http.openapi import openapi_document
from service.http.request_models import RequestModels
from service.http.routes import build_endpoints
from service.http.routes.dependencies import RouteDependencies
from service.settings import Settings
from service.telemetry import Telemetry

CHECK_SECONDS = 1.0  # how often one of several workers checks and measures itself

log = logging.getLogger("keymatch")


def build_app(
    engine: Engine,
    *,
    settings: Settings,
    access: Access,
    telemetry: Telemetry,
    failed: Callable[[], None] = lambda: None,
    draining: Callable[[], bool] = lambda: False,
) -> Starlette:
    """The application; it opens the engine in the background, while probes are answered.

    An engine that is already open is left as it is. `failed` is called if the engine cannot be
    opened, and, in one of several workers, if it breaks later. `draining` tells whether the process
    was asked to end: streams, which may last for ever, then end themselves.
    """
    endpoints = build_endpoints(
        RouteDependencies(
            engine=engine,
            models=RequestModels(settings.limits),
            limits=settings.limits,
            telemetry=telemetry,
            draining=draining,
        )
    )
    body_bytes = settings.limits.body_bytes
    app = Starlette(
        routes=[
            *(EndpointRoute(one, access=access, body_bytes=body_bytes) for one in endpoints),
            *documentation_routes(
                lambda: openapi_document(endpoints, title="Keymatch", version=version("keymatch"))
            ),
        ],
        middleware=[Middleware(RequestMiddleware, telemetry=telemetry)],
        exception_handlers=_exception_handlers(telemetry),
        lifespan=_lifespan(engine, telemetry, failed),
    )
    # A path with a trailing slash is unknown; a redirect would be an answer that is not documented.
    app.router.redirect_slashes = False
    return app


def _exception_handlers(telemetry: Telemetry) -> dict[Any, Any]:
    """What a request is answered after an exception, by the exception's class."""

    async def refused(_request: Request, error: KeymatchError) -> Response:
        reason = problems.reason(error)
        if reason:
            telemetry.rejected.labels(reason).inc()
        return problems.from_error(error)

    async def invalid(_request: Request, error: ValidationError) -> Response:
        telemetry.rejected.labels("invalid").inc()
        return problems.from_validation(error)

    async def unrouted(_request: Request, error: HTTPException) -> Response:
        return problems.from_status(error.status_code, dict(error.headers or {}))

    return {KeymatchError: refused, ValidationError: invalid, HTTPException: unrouted}


def _lifespan(
    engine: Engine, telemetry: Telemetry, failed: Callable[[], None]
) -> Callable[[Starlette], AbstractAsyncContextManager[None]]:
    """Open the engine at the start, and close it at the end."""

    async def open_engine() -> None:
        try:
            await asyncio.to_thread(engine.open)
        except Exception as error:
            if not isinstance(error, KeymatchError):
                log.error("defect", exc_info=error)
            failed()

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        opening = asyncio.create_task(open_engine()) if engine.state is State.STARTING else None
        checking = asyncio.create_task(_check(engine, failed)) if telemetry.shared else None
        yield
        if opening is not None:
            await opening
        if checking is not None:
            checking.cancel()
        await asyncio.to_thread(engine.close)

    return lifespan


async def _check(engine: Engine, failed: Callable[[], None]) -> None:
    """Measure and check one of several workers; a scrape or a probe may reach any other of them."""
    while not engine.broken():
        try:
            engine.measure()
        except Exception as error:
            log.error("defect", exc_info=error)
        await asyncio.sleep(CHECK_SECONDS)
    log.error("a part of this worker has died; the worker asks to be replaced")
    failed()

"""The FastAPI application around one engine: its routes, its middleware and its life."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from service.core.errors import KeymatchError
from service.engine.engine import Engine
from service.engine.status import State
from service.http import problems
from service.http.auth import Access
from service.http.endpoint import Endpoint, EndpointRoute
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
) -> FastAPI:
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
    app = _DocumentedApp(
        endpoints,
        title="Keymatch",
        version=version("keymatch"),
        routes=[
            *(EndpointRoute(one, access=access, body_bytes=body_bytes) for one in endpoints),
            Route("/", _to_the_documentation, include_in_schema=False),
        ],
        middleware=[Middleware(RequestMiddleware, telemetry=telemetry)],
        exception_handlers=_exception_handlers(telemetry),
        lifespan=_lifespan(engine, telemetry, failed),
        redoc_url=None,
        # A path with a trailing slash is unknown: a redirect would be an undocumented answer.
        redirect_slashes=False,
    )
    return app


class _DocumentedApp(FastAPI):
    """Makes /openapi.json, which /docs shows, from the endpoints in place of FastAPI's routes."""

    def __init__(self, endpoints: Sequence[Endpoint[Any]], **options: Any) -> None:
        super().__init__(**options)
        self._endpoints = endpoints

    def openapi(self) -> dict[str, Any]:
        """The OpenAPI document, made when it is first requested."""
        if self.openapi_schema is None:
            self.openapi_schema = openapi_document(
                self._endpoints, title=self.title, version=self.version
            )
        return self.openapi_schema


async def _to_the_documentation(_request: Request) -> Response:
    return RedirectResponse("/docs")


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
) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    """Open the engine at the start, and close it at the end."""

    async def open_engine() -> None:
        try:
            await asyncio.to_thread(engine.open)
        except Exception as error:
            if not isinstance(error, KeymatchError):
                log.error("defect", exc_info=error)
            failed()

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
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

"""The FastAPI application around one engine: its routes, its middleware and its life."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib.metadata import version
from types import MappingProxyType
from typing import Any

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from service.core.errors import KeymatchError
from service.engine.engine import Engine
from service.engine.status import State
from service.http import problems
from service.http.auth import Access
from service.http.browser.docs_page import DocsPage
from service.http.browser.sites import Sites
from service.http.direct_routes import DirectRoutes
from service.http.endpoint import Endpoint, EndpointRoute
from service.http.large.held_bytes import HeldBytes
from service.http.middleware import RequestMiddleware
from service.http.openapi import openapi_document
from service.http.refusals import Refusals
from service.http.request_models import RequestModels
from service.http.routes import build_endpoints
from service.http.routes.dependencies import RouteDependencies
from service.http.side_thread import SideThread
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
    connection_state: Mapping[str, Any] = MappingProxyType({}),
) -> FastAPI:
    """The application; it opens the engine in the background, while probes are answered.

    An engine that is already open is left as it is. `failed` is called if the engine cannot be
    opened, and, in one of several workers, if it breaks later. `draining` tells whether the process
    was asked to end: streams, which may last for ever, then end themselves. The server hands
    `connection_state` to each connection.
    """
    side_thread = SideThread()
    held_bytes = HeldBytes(settings.limits.held_bytes, telemetry.held_bytes)
    endpoints = build_endpoints(
        RouteDependencies(
            engine=engine,
            models=RequestModels(settings.limits),
            limits=settings.limits,
            telemetry=telemetry,
            metrics_scope="metrics" if settings.server.metrics_need_key else None,
            side_thread=side_thread,
            draining=draining,
        )
    )
    body_bytes = settings.limits.body_bytes
    bounds = {"body_bytes": body_bytes, "side_thread": side_thread, "held_bytes": held_bytes}
    routes = _routes(endpoints, access=access, telemetry=telemetry, **bounds)
    sites = Sites(settings.server, access)
    return _Application(
        endpoints,
        body_bytes=body_bytes,
        keys=bool(access.keys),
        direct=DirectRoutes(routes, sites=sites, telemetry=telemetry),
        routes=[*routes, *_pages()],
        middleware=[Middleware(RequestMiddleware, sites=sites, telemetry=telemetry)],
        exception_handlers={HTTPException: _unrouted},
        lifespan=_lifespan(engine, telemetry, failed, connection_state),
        # A path with a trailing slash is unknown: a redirect would be an undocumented answer.
        redirect_slashes=False,
    )


def _routes(endpoints: Sequence[Endpoint[Any]], **shared: Any) -> list[EndpointRoute]:
    return [
        EndpointRoute(
            one,
            allowed={other.method for other in endpoints if other.path == one.path},
            **shared,
        )
        for one in endpoints
    ]


class _Application(FastAPI):
    """Serves exact paths directly, and makes /openapi.json from the endpoints."""

    def __init__(
        self,
        endpoints: Sequence[Endpoint[Any]],
        *,
        direct: DirectRoutes,
        body_bytes: int,
        keys: bool,
        **options: Any,
    ) -> None:
        super().__init__(
            title="Keymatch",
            version=version("keymatch"),
            docs_url=None,  # see `_pages`
            redoc_url=None,
            **options,
        )
        self._endpoints, self._direct = endpoints, direct
        self._body_bytes, self._keys = body_bytes, keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or run the application's life."""
        direct = self._direct.find(scope)
        await (direct or super().__call__)(scope, receive, send)

    def openapi(self) -> dict[str, Any]:
        """The OpenAPI document, made when it is first requested."""
        if self.openapi_schema is None:
            self.openapi_schema = openapi_document(
                self._endpoints,
                title=self.title,
                version=self.version,
                body_bytes=self._body_bytes,
                keys=self._keys,
            )
        return self.openapi_schema


def _pages() -> list[Route]:
    return [
        Route("/", _to_the_documentation, include_in_schema=False),
        Route("/docs", DocsPage(title="Keymatch").show, include_in_schema=False),
    ]


async def _to_the_documentation(_request: Request) -> Response:
    return RedirectResponse("/docs")


async def _unrouted(_request: Request, error: HTTPException) -> Response:
    return problems.from_status(error.status_code, dict(error.headers or {}))


def _lifespan(
    engine: Engine,
    telemetry: Telemetry,
    failed: Callable[[], None],
    connection_state: Mapping[str, Any],
) -> Callable[[FastAPI], AbstractAsyncContextManager[dict[str, Any]]]:
    """Open the engine at the start, and close it at the end."""
    refusals = Refusals(engine.arrivals, telemetry)

    async def open_engine() -> None:
        try:
            await asyncio.to_thread(engine.open)
        except Exception as error:
            if not isinstance(error, KeymatchError):
                log.error("defect", exc_info=error)
            failed()

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[dict[str, Any]]:
        opening = asyncio.create_task(open_engine()) if engine.state is State.STARTING else None
        checking = asyncio.create_task(_check(engine, failed)) if telemetry.shared else None
        # The server hands this to each connection, see service/server/connection.py.
        yield {**connection_state, "refusals": refusals}
        refusals.record()
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

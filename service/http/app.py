"""The FastAPI application around one engine: its routes, middleware, start and end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import cache, partial
from http import HTTPStatus
from importlib.metadata import version
from types import MappingProxyType
from typing import Any

from fastapi import FastAPI
from starlette.convertors import PathConvertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from service.core.errors import KeymatchError
from service.engine.engine import Engine, State
from service.http import problems
from service.http.access import Access, Sites
from service.http.admin import AdminRoutes
from service.http.endpoint import Endpoint, EndpointRoute
from service.http.instances import InstanceRoutes
from service.http.items import ItemRoutes
from service.http.labels import LabelRoutes
from service.http.middleware import Application, Refusals, RequestMiddleware, direct_routes
from service.http.openapi import docs_page, openapi_document
from service.http.predictions import PredictRoutes
from service.http.request_body import HeldBytes, SideThread
from service.http.rules import RuleRoutes
from service.settings import Settings
from service.telemetry import Telemetry

RESOURCES = (PredictRoutes, LabelRoutes, InstanceRoutes, RuleRoutes, ItemRoutes, AdminRoutes)
CHECK_SECONDS = 1.0  # between two checks and measurements, if there are several workers

log = logging.getLogger("keymatch")


class LabelId(PathConvertor):
    """A path parameter of any text; Starlette's own `path` ends at a line break."""

    regex = "(?s:.*)"


def build_endpoints(**parts: Any) -> list[Endpoint[Any]]:
    """Return all routes of the HTTP contract; `parts` are the fields of `Routes`."""
    register_url_convertor("label_id", LabelId())
    return [endpoint for resource in RESOURCES for endpoint in resource(**parts).endpoints()]


def build_app(
    engine: Engine,
    *,
    settings: Settings,
    access: Access,
    telemetry: Telemetry,
    failed: Callable[[], None] = lambda: None,
    ending: Callable[[], None] = lambda: None,
    leaving: Callable[[], bool] = lambda: False,
    draining: Callable[[], bool] = lambda: False,
    connection_state: Mapping[str, Any] = MappingProxyType({}),
) -> FastAPI:
    """Return the application. It opens the engine in the background and already answers probes.

    An engine that is already open is used as it is. `failed` is called if the engine cannot be
    opened or, with several workers, breaks later. `ending` is called when the application begins to
    end, which may take as long as the engine takes to open. `leaving` returns whether load
    balancers are to send no more requests, and `draining` whether the process ends; streams of
    labels then end. The server passes `connection_state` to each connection.
    """
    side_thread = SideThread(engine.switches)
    held_bytes = HeldBytes(settings.limits.held_bytes, telemetry.held_bytes)
    endpoints = build_endpoints(
        engine=engine,
        limits=settings.limits,
        telemetry=telemetry,
        metrics_scope="metrics" if settings.server.metrics_need_key else "",
        side_thread=side_thread,
        leaving=leaving,
        draining=draining,
    )
    body_bytes = settings.limits.body_bytes
    bounds = {"body_bytes": body_bytes, "side_thread": side_thread, "held_bytes": held_bytes}
    sites = Sites(settings.server, access)
    routes = _routes(endpoints, access=access, sites=sites, telemetry=telemetry, **bounds)
    named = {"title": "Keymatch", "version": version("keymatch")}
    document = partial(
        openapi_document, endpoints, body_bytes=body_bytes, keys=access.restricted, **named
    )
    pages = {"/": _to_the_documentation, "/docs": docs_page(named["title"])}
    return Application(
        **named,
        direct=direct_routes(routes, sites=sites, telemetry=telemetry),
        document=cache(document),
        routes=[*routes, *(Route(*page, include_in_schema=False) for page in pages.items())],
        middleware=[Middleware(RequestMiddleware, sites=sites, telemetry=telemetry)],
        exception_handlers={HTTPException: _unrouted},
        lifespan=_lifespan(
            engine,
            telemetry,
            {**connection_state, "refusals": Refusals(telemetry, sites)},
            failed=failed,
            ending=ending,
        ),
        # Without redirects, a path with a trailing slash is unknown: a redirect is not documented.
        redirect_slashes=False,
    )


def _routes(endpoints: Sequence[Endpoint[Any]], **shared: Any) -> list[EndpointRoute]:
    return [
        EndpointRoute(
            one,
            allowed={
                method for other in endpoints if other.path == one.path for method in other.methods
            },
            **shared,
        )
        for one in endpoints
    ]


async def _to_the_documentation(_request: Request) -> Response:
    return RedirectResponse("/docs")


async def _unrouted(_request: Request, error: HTTPException) -> Response:
    """Answer a request of an unknown route or method."""
    problem = problems.problem(error.status_code, HTTPStatus(error.status_code).phrase)
    return problems.problem_response(problem, dict(error.headers or {}))


def _lifespan(
    engine: Engine,
    telemetry: Telemetry,
    connection_state: Mapping[str, Any],
    *,
    failed: Callable[[], None],
    ending: Callable[[], None],
) -> Callable[[FastAPI], AbstractAsyncContextManager[dict[str, Any]]]:
    """Open the engine at the start, and close it at the end."""
    refusals: Refusals = connection_state["refusals"]

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
        # The server passes this to each connection, see service/server/connection.py.
        yield {**connection_state, "arrivals": engine.arrivals}
        ending()
        refusals.record()
        if opening is not None:
            await opening
        if checking is not None:
            checking.cancel()
        await asyncio.to_thread(engine.close)

    return lifespan


async def _check(engine: Engine, failed: Callable[[], None]) -> None:
    """Measure and check this worker regularly: scrapes and probes may reach only other workers."""
    while not engine.broken():
        try:
            engine.measure()
        except Exception as error:
            log.error("defect", exc_info=error)
        await asyncio.sleep(CHECK_SECONDS)
    log.error("a part of this worker has died; the worker asks to be replaced")
    failed()

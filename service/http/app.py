"""The FastAPI application around one engine."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.exceptions import HTTPException

from service.core.errors import KeymatchError
from service.engine.engine import Engine, State
from service.http import problems
from service.http.auth import Access
from service.http.express import Express
from service.http.middleware import Watch
from service.http.routes import build_routers
from service.http.routes.dependencies import Parts
from service.settings import Settings
from service.telemetry import Telemetry

WATCH_SECONDS = 1.0

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
    """The application; it opens the engine in the background, so that probes answer meanwhile.

    An engine that is open already stays as it is. `failed` is called when it cannot be opened, and,
    where there are other workers, when it has broken since. `draining` tells whether the process
    was asked to end: requests without an end of their own must find one then.
    """

    # A path with a stray slash is unknown: a redirect would be an answer that nobody documents.
    app = FastAPI(
        title="Keymatch",
        lifespan=_lifespan(engine, telemetry, failed),
        redoc_url=None,
        redirect_slashes=False,
    )
    routers = build_routers(
        Parts(
            engine=engine,
            limits=settings.limits,
            access=access,
            telemetry=telemetry,
            draining=draining,
        )
    )
    for router in routers:
        app.include_router(router)
    routes = [route for router in routers for route in router.routes]
    app.add_middleware(Express, routes=routes, handlers=app.exception_handlers)
    app.add_middleware(Watch, telemetry=telemetry)  # the last added is the outermost

    @app.exception_handler(KeymatchError)
    async def refused(_request: Request, error: KeymatchError) -> Response:
        reason = problems.reason(error)
        if reason:
            telemetry.rejected.labels(reason).inc()
        return problems.from_error(error)

    @app.exception_handler(ValidationError)
    async def invalid_body(_request: Request, error: ValidationError) -> Response:
        telemetry.rejected.labels("invalid").inc()
        return problems.from_validation(error)

    @app.exception_handler(RequestValidationError)
    async def invalid_parameters(_request: Request, error: RequestValidationError) -> Response:
        telemetry.rejected.labels("invalid").inc()
        return problems.invalid([(found["loc"][1:], found["msg"]) for found in error.errors()])

    @app.exception_handler(HTTPException)
    async def unrouted(_request: Request, error: HTTPException) -> Response:
        answer = problems.from_status(error.status_code)
        answer.headers.update(error.headers or {})
        return answer

    return app


def _lifespan(
    engine: Engine, telemetry: Telemetry, failed: Callable[[], None]
) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
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
        watching = asyncio.create_task(_watch(engine, failed)) if telemetry.shared else None
        yield
        if opening is not None:
            await opening
        if watching is not None:
            watching.cancel()
        await asyncio.to_thread(engine.close)

    return lifespan


async def _watch(engine: Engine, failed: Callable[[], None]) -> None:
    """Do for one of several workers what scrapes and probes cannot: they may reach any other."""
    while not engine.broken():
        try:
            engine.measure()
        except Exception as error:
            log.error("defect", exc_info=error)
        await asyncio.sleep(WATCH_SECONDS)
    log.error("a part of this worker has died; it must be replaced")
    failed()

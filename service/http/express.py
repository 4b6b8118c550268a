"""A short way to the routes that read their own bodies.

FastAPI looks for a route through several layers and prepares for parameters, dependencies and forms
that these routes do not have: about a millisecond of every request, under the interpreter's lock.
Here they are found in a table, and called with what guards them. They stay FastAPI's routes for all
else: paths, methods, documentation, and requests that the table does not know.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import Any

from fastapi import Request
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send


class Express:
    """ASGI middleware around the framework's router."""

    def __init__(
        self, app: ASGIApp, *, routes: Iterable[BaseRoute], handlers: Mapping[Any, Any]
    ) -> None:
        """Serve those of `routes` that can be; `handlers` answer exceptions, as the framework's."""
        self._app, self._handlers = app, handlers
        self._routes = {
            (method, route.path): route
            for route in routes
            if isinstance(route, APIRoute) and _takes_the_request_only(route)
            for method in route.methods or ()
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or hand on."""
        route = None
        if scope["type"] == "http":
            route = self._routes.get((scope["method"], scope["path"]))
        if route is None:
            await self._app(scope, receive, send)
            return
        scope["route"] = route
        request = Request(scope, receive, send)
        try:
            for guard in route.dependencies:
                if guard.dependency is not None:
                    await guard.dependency(request)
            answer = await route.endpoint(request)
        except Exception as error:
            handler = self._handler(error)
            if handler is None:
                raise
            answer = await handler(request, error)
        await answer(scope, receive, send)

    def _handler(self, error: Exception) -> Any:
        known = (self._handlers.get(kind) for kind in type(error).__mro__)
        return next((handler for handler in known if handler is not None), None)


def _takes_the_request_only(route: APIRoute) -> bool:
    return "{" not in route.path and list(inspect.signature(route.endpoint).parameters) == [
        "request"
    ]

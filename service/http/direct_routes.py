"""A table of the routes whose path has no parameter: they are found by one look-up.

A request for any other path, or with another method, goes through FastAPI and Starlette, whose
middleware and regular expressions would cost each query more than its own route does.
"""

from __future__ import annotations

from collections.abc import Sequence

from starlette.types import ASGIApp, Receive, Scope, Send

from service.http.browser.sites import Sites
from service.http.endpoint import EndpointRoute
from service.http.middleware import RequestMiddleware
from service.telemetry import Telemetry


class DirectRoutes:
    """Routes by method and path, each inside the middleware of every request."""

    def __init__(
        self, routes: Sequence[EndpointRoute], *, sites: Sites, telemetry: Telemetry
    ) -> None:
        """Routes whose path has a parameter are left out."""
        self._routes = {
            (method, route.path): RequestMiddleware(
                _routed(route), sites=sites, telemetry=telemetry
            )
            for route in routes
            if not route.param_convertors
            for method in route.methods or ()
        }

    def find(self, scope: Scope) -> ASGIApp | None:
        """Return what answers the request, None if FastAPI must find the route."""
        if scope["type"] != "http":
            return None
        return self._routes.get((scope["method"], scope["path"]))


def _routed(route: EndpointRoute) -> ASGIApp:
    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        scope["route"] = route  # for the metrics, as Starlette's router would set it
        await route.serve(scope, receive, send)

    return serve

"""The table of routes with exact paths: what it finds, and what it leaves to the framework."""

from typing import Any

import pytest

from service.http.auth import Access
from service.http.browser.sites import Sites
from service.http.direct_routes import DirectRoutes
from service.http.endpoint import Call, Endpoint, EndpointRoute
from service.http.large.held_bytes import HeldBytes
from service.http.side_thread import SideThread
from service.settings import ServerSettings
from service.telemetry import Telemetry


async def nothing(_call: Call[None]) -> dict[str, Any]:
    return {}


def table() -> DirectRoutes:
    telemetry = Telemetry()
    routes = [
        EndpointRoute(
            Endpoint(method=method, path=path, summary="", handler=nothing),
            allowed=[method],
            access=Access(),
            body_bytes=1,
            telemetry=telemetry,
            side_thread=SideThread(),
            held_bytes=HeldBytes(1),
        )
        for method, path in (("GET", "/info"), ("POST", "/info"), ("GET", "/labels/{label_id}"))
    ]
    return DirectRoutes(routes, sites=Sites(ServerSettings(), Access()), telemetry=telemetry)


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_an_exact_path_is_found(method: str) -> None:
    assert table().find({"type": "http", "method": method, "path": "/info"})


@pytest.mark.parametrize(
    "scope",
    [
        {"type": "http", "method": "DELETE", "path": "/info"},
        {"type": "http", "method": "HEAD", "path": "/info"},
        {"type": "http", "method": "GET", "path": "/info/"},
        {"type": "http", "method": "GET", "path": "/labels/a"},
        {"type": "http", "method": "GET", "path": "/labels/{label_id}"},
        {"type": "lifespan"},
    ],
)
def test_everything_else_is_left_to_the_framework(scope: dict[str, Any]) -> None:
    assert table().find(scope) is None

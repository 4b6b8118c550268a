"""Errors that the connection sends before the application runs look like all other errors."""

from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path

import httpx
import pytest

from service.http.middleware import STRICT
from service.settings import ServerSettings
from tests.support.http.server import TENT, HttpService, http_service, post, read_answer
from tests.support.waiting import wait_for

LIVE = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"
PREDICTION = post("/predict", TENT)
Provoke = Callable[[HttpService], bytes]


def crowd(service: HttpService) -> bytes:
    """Allow no connections except those reserved for probes."""
    service.guard.most = 0
    return PREDICTION


def overload(service: HttpService) -> bytes:
    """Make the service refuse every prediction as soon as its header has arrived."""
    service.overload()
    return PREDICTION


PROVOKED: dict[int, Provoke] = {
    400: lambda _service: b"this is no HTTP\r\n\r\n",
    408: lambda _service: PREDICTION[:-10],
    429: overload,
    431: lambda _service: LIVE[:-2] + b"x-field: " + b"a" * 40_000 + b"\r\n\r\n",
    503: crowd,
}


@pytest.mark.parametrize("status", PROVOKED)
def test_an_answer_below_the_application_is_like_any_other(
    tiny_bundle_folder: Path, tmp_path: Path, status: int
) -> None:
    server = ServerSettings(body_seconds=1)
    with http_service(tiny_bundle_folder, tmp_path, server) as service, ExitStack() as sockets:
        sent = PROVOKED[status](service)
        connection = sockets.enter_context(closing(service.connect()))
        connection.sendall(sent)
        found, headers, problem = read_answer(connection)
        assert found == status
        assert headers["content-type"] == "application/problem+json"
        assert headers["x-request-id"]
        for name, value in STRICT:
            assert headers[name.decode()] == value.decode()
        assert problem["status"] == status
        assert problem["type"].startswith("urn:keymatch:problem:")
        service.guard.most = 10
        # On a new connection: the service may have closed the client's idle one.
        metrics = str(service.client.base_url.join("/metrics"))
        wait_for(lambda: f'status="{status}"' in httpx.get(metrics).text)

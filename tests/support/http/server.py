"""A service within this process behind real sockets, so that a test can pause its functions."""

import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.client import HTTPResponse
from pathlib import Path
from typing import Any

import httpx
import orjson
import uvicorn
from prometheus_client import CollectorRegistry, Gauge

from service.http.middleware import STRICT
from service.server.connection import ConnectionGuard, ServiceConnection
from service.settings import EngineSettings, Limits, ServerSettings, Settings
from tests.support.no_children import no_children
from tests.support.serving import service_parts
from tests.support.waiting import wait_for

TENT = {"queries": ["tent"], "deadline_ms": 60_000}


class HttpService:
    """uvicorn with the service's own connection class, in a thread."""

    def __init__(
        self,
        bundle: Path,
        state: Path,
        *,
        server: ServerSettings | None = None,
        limits: Limits | None = None,
        **engine: Any,
    ) -> None:
        server, limits = server or ServerSettings(), limits or Limits()
        engine = {"threads": 1, **engine}
        settings = Settings(engine=EngineSettings(**engine), limits=limits, server=server)
        self._registry = CollectorRegistry()
        guard = ConnectionGuard(server, Gauge("open", "connections", registry=self._registry))
        self.engine, _, app = service_parts(
            bundle, state, settings, connection_state={"guard": guard}
        )
        listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = listening.getsockname()[1]
        self.server = uvicorn.Server(
            uvicorn.Config(app, http=ServiceConnection, log_config=None, access_log=False)
        )
        self.thread = threading.Thread(target=self.server.run, args=([listening],))
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=60)

    def overload(self) -> None:
        """From now on, refuse every prediction, as if far too many were waiting."""
        for queries in (1, 100):
            control = self.engine._queue.lane(queries).control
            control.overloaded, control.limit = True, 0

    def metric(self, line: str) -> bool:
        """Return whether /metrics has this line."""
        return line in self.client.get("/metrics").text.splitlines()

    def value(self, name: str) -> float:
        """Return the value of a metric without labels."""
        lines = self.client.get("/metrics").text.splitlines()
        return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=60)

    @property
    def connections(self) -> float:
        """The number of open connections, with that of `client`."""
        return self._registry.get_sample_value("open") or 0


@contextmanager
def http_service(bundle: Path, state: Path, **settings: Any) -> Iterator[HttpService]:
    """Serve until the end of the block, with `server`, `limits` and fields of `EngineSettings`."""
    with no_children():
        service = HttpService(bundle, state, **settings)
        service.thread.start()
        try:
            with closing(service.client):
                wait_for(lambda: service.client.get("/health/ready").status_code == 200)
                yield service
        finally:
            service.server.should_exit = True
            service.thread.join(60)


def post(path: str, document: object, *headers: str) -> bytes:
    """Return the bytes of a POST request."""
    body = orjson.dumps(document)
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json"]
    lines += [f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def read_answer(connection: socket.socket) -> tuple[int, dict[str, str], Any]:
    """Read the next answer's status, headers and JSON body; the connection stays usable."""
    answer = HTTPResponse(connection)
    answer.begin()
    headers = {name.lower(): value for name, value in answer.getheaders()}
    return answer.status, headers, orjson.loads(answer.read())


def read_problem(connection: socket.socket, status: int) -> dict[str, Any]:
    """Read the connection's last answer, which is a problem of this status.

    The connection sends it without the application, but like any other answer.
    """
    found, headers, problem = read_answer(connection)
    assert found == problem["status"] == status
    assert headers["connection"] == "close"
    assert headers["content-type"] == "application/problem+json"
    assert headers["x-request-id"]
    for name, value in STRICT:
        assert headers[name.decode()] == value.decode()
    return problem

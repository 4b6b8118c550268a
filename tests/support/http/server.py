"""A service within this process behind real sockets, so that a test can hold what it works on."""

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

from service.engine.engine import Engine
from service.http.app import build_app
from service.http.auth import Access
from service.server.connection import ServiceConnection
from service.server.connection_guard import ConnectionGuard
from service.settings import EngineSettings, Limits, ServerSettings, Settings
from service.telemetry import Telemetry
from tests.support.waiting import wait_for

TENT = {"queries": ["tent"], "deadline_ms": 60_000}


class HttpService:
    """uvicorn with the service's own connections, in a thread."""

    def __init__(
        self,
        bundle: Path,
        state: Path,
        server: ServerSettings | None = None,
        limits: Limits | None = None,
        **engine: Any,
    ) -> None:
        server = server or ServerSettings()
        settings = Settings(
            engine=EngineSettings(**{"threads": 1, **engine}),
            limits=limits or Limits(),
            server=server,
        )
        self.guard = ConnectionGuard(server)
        telemetry = Telemetry()
        self.engine = Engine(bundle, state, settings=settings.engine, telemetry=telemetry)
        app = build_app(
            self.engine,
            settings=settings,
            access=Access(),
            telemetry=telemetry,
            connection_state={"guard": self.guard},
        )
        listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = listening.getsockname()[1]
        self.server = uvicorn.Server(
            uvicorn.Config(app, http=ServiceConnection, log_config=None, access_log=False)
        )
        self.thread = threading.Thread(target=self.server.run, args=([listening],))
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=60)

    def overload(self) -> None:
        """Let every prediction be refused from now on, as if far too many waited."""
        for queries in (1, 100):
            control = self.engine._queue.lane(queries).control
            control.overloaded, control.limit = True, 0

    def metric(self, line: str) -> bool:
        """Whether /metrics has this line."""
        return line in self.client.get("/metrics").text.splitlines()

    def value(self, name: str) -> float:
        """The value of a metric without labels."""
        lines = self.client.get("/metrics").text.splitlines()
        return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=60)


@contextmanager
def http_service(
    bundle: Path,
    state: Path,
    server: ServerSettings | None = None,
    limits: Limits | None = None,
    **engine: Any,
) -> Iterator[HttpService]:
    """Serve until the end of the block; `engine` holds fields of `EngineSettings`."""
    service = HttpService(bundle, state, server, limits, **engine)
    service.thread.start()
    try:
        with closing(service.client):
            wait_for(lambda: service.client.get("/health/ready").status_code == 200)
            yield service
    finally:
        service.server.should_exit = True
        service.thread.join(60)


def post(path: str, document: object, *headers: str) -> bytes:
    """The bytes of a request."""
    body = orjson.dumps(document)
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json"]
    lines += [f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def read_answer(connection: socket.socket) -> tuple[int, dict[str, str], Any]:
    """Status, headers and JSON body of the next answer; the connection stays usable."""
    answer = HTTPResponse(connection)
    answer.begin()
    headers = {name.lower(): value for name, value in answer.getheaders()}
    return answer.status, headers, orjson.loads(answer.read())

"""The service under test: in this process without sockets, or as a child process."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import orjson
from anyio.from_thread import BlockingPortal, start_blocking_portal

from service.engine.engine import Engine
from service.http.app import build_app
from service.http.auth import Access
from service.settings import EngineSettings, Limits, ServerSettings, Settings
from service.telemetry import Telemetry
from tests.support.waiting import READY_WITHIN
from tests.support.waiting import wait_for as wait_for

SERVICE = ("-m", "service")


class LocalService:
    """The application on an event loop in another thread; send requests from any thread."""

    def __init__(self, engine: Engine, telemetry: Telemetry, portal: BlockingPortal) -> None:
        self.engine, self.telemetry = engine, telemetry
        self._portal = portal
        self.client: httpx.AsyncClient

    def request(self, method: str, path: str, **how: Any) -> httpx.Response:
        return self._portal.call(partial(self.client.request, method, path, **how))

    def get(self, path: str, **how: Any) -> httpx.Response:
        return self.request("GET", path, **how)

    def post(self, path: str, document: Any = None, **how: Any) -> httpx.Response:
        return self.request("POST", path, **({} if document is None else {"json": document}), **how)

    def wait_ready(self) -> None:
        wait_for(self.engine.ready)


@contextmanager
def local_service(
    bundle: Path,
    state: Path,
    *,
    access: Access | None = None,
    limits: Limits | None = None,
    server: ServerSettings | None = None,
    wait: bool = True,
    **engine: Any,
) -> Iterator[LocalService]:
    """Serve `bundle` in this process; `engine` holds fields of `EngineSettings`."""
    settings = Settings(
        engine=EngineSettings(**{"threads": 2, **engine}),
        limits=limits or Limits(),
        server=replace(server or ServerSettings(), hosts=("service",)),
    )
    telemetry = Telemetry()
    core = Engine(bundle, state, settings=settings.engine, telemetry=telemetry)
    app = build_app(core, settings=settings, access=access or Access(), telemetry=telemetry)
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(app.router.lifespan_context(app)),
        portal.wrap_async_context_manager(
            httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://service")
        ) as client,
    ):
        service = LocalService(core, telemetry, portal)
        service.client = client
        if wait:
            service.wait_ready()
        yield service


class ServerProcess:
    """`python -m service serve` on a free port, logging to a file."""

    def __init__(
        self,
        bundle: Path,
        state: Path | str,
        log: Path,
        *options: str,
        env: Mapping[str, str],
        program: Sequence[str] = SERVICE,
    ) -> None:
        self._log = log
        places = ("--bundle", str(bundle), "--state", str(state))
        with log.open("wb") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, *program, "serve", *places, "--port", "0", *options],
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                env={**os.environ, **env},
            )
        self.port: int = wait_for(self._listening)[0]["port"]
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=60)

    def wait_ready(self) -> None:
        wait_for(lambda: self.client.get("/health/ready").status_code == 200)

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=60)

    def logged(self, message: str) -> list[dict[str, Any]]:
        """The lines of the server's log with this message."""
        return [line for line in self._lines() if line["message"] == message]

    def _lines(self) -> list[dict[str, Any]]:
        lines = self._log.read_bytes().splitlines(keepends=True)
        return [orjson.loads(line) for line in lines if line[:1] == b"{" and line[-1:] == b"\n"]

    @property
    def workers(self) -> list[int]:
        """The process ids of all workers that ever listened, in order; one worker is the server."""
        head, lines = "Started server process [", self._lines()
        said = [line["message"] for line in lines if line["message"].startswith(head)]
        return [int(message.removeprefix(head).rstrip("]")) for message in said]

    def _listening(self) -> list[dict[str, Any]]:
        if self.process.poll() is not None:
            raise AssertionError(f"the server ended: {self._log.read_text()}")
        return self.logged("listening")

    def stop(self) -> int:
        """Send SIGTERM; returns the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(READY_WITHIN)

    def kill(self) -> None:
        """Send SIGKILL: nothing is flushed or logged."""
        self.process.kill()
        self.process.wait(READY_WITHIN)


@contextmanager
def server_process(
    bundle: Path,
    state: Path | str,
    log: Path,
    *options: str,
    env: Mapping[str, str] | None = None,
    program: Sequence[str] = SERVICE,
    wait: bool = True,
) -> Iterator[ServerProcess]:
    """A server process that is killed at the end of the block if it still runs."""
    server = ServerProcess(bundle, state, log, *options, env=env or {}, program=program)
    try:
        if wait:
            server.wait_ready()
        yield server
    finally:
        server.client.close()
        if server.process.poll() is None:
            server.kill()

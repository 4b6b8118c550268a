"""The service under test: in this process without sockets, or as a child process."""

import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx
from anyio.from_thread import BlockingPortal, start_blocking_portal
from fastapi import FastAPI

from service.child_server import HOST, Server, serve_command
from service.engine.engine import Engine
from service.engine.loaded_bundle import OpenShards
from service.http.access import Access
from service.http.app import build_app
from service.settings import EngineSettings, Limits, ServerSettings, Settings
from service.telemetry import Telemetry
from tests.support.no_children import no_children
from tests.support.waiting import wait_for


class LocalService:
    """The application on an event loop in another thread; any thread can send requests."""

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


def service_parts(
    bundle: Path,
    state: Path | str,
    settings: Settings,
    *,
    access: Access | None = None,
    bundles: Path | None = None,
    open_shards: OpenShards | None = None,
    **more: Any,
) -> tuple[Engine, Telemetry, FastAPI]:
    """Return an engine that is not open yet, its metrics, and its application."""
    telemetry = Telemetry()
    engine = Engine(
        bundle,
        state,
        bundles=bundles,
        settings=settings.engine,
        telemetry=telemetry,
        open_shards=open_shards,
    )
    access = access or Access()
    app = build_app(engine, settings=settings, access=access, telemetry=telemetry, **more)
    return engine, telemetry, app


@contextmanager
def local_service(
    bundle: Path,
    state: Path | str,
    *,
    access: Access | None = None,
    limits: Limits | None = None,
    server: ServerSettings | None = None,
    wait: bool = True,
    bundles: Path | None = None,
    children: bool = False,
    open_shards: OpenShards | None = None,
    **engine: Any,
) -> Iterator[LocalService]:
    """Serve `bundle` in this process; `engine` holds fields of `EngineSettings`.

    With `children`, child processes encode posted texts and try bundles, as in a real server.
    """
    settings = Settings(
        engine=EngineSettings(**{"threads": 2, **engine}),
        limits=limits or Limits(),
        server=replace(server or ServerSettings(), hosts=("service",)),
    )
    core, telemetry, app = service_parts(
        bundle, state, settings, access=access, bundles=bundles, open_shards=open_shards
    )
    with (
        nullcontext() if children else no_children(),
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


class ServerProcess(Server):
    """The process of a service, with an httpx client for it."""

    def __init__(self, command: Sequence[str], *, log: Path, env: Mapping[str, str]) -> None:
        super().__init__(command, log=log, environment={**os.environ, **env})
        self.client = httpx.Client(base_url=self.url, timeout=60)

    def connect(self) -> socket.socket:
        return socket.create_connection((HOST, self.port), timeout=60)

    @property
    def workers(self) -> list[int]:
        """The process ids of all workers that ever listened; a sole worker is the server itself."""
        head = "Started server process ["
        said = [one["message"] for one in self.log_lines() if one["message"].startswith(head)]
        return [int(message.removeprefix(head).rstrip("]")) for message in said]


@contextmanager
def server_process(
    bundle: Path | str,
    state: Path | str,
    log: Path,
    *options: str,
    env: Mapping[str, str] | None = None,
    program: Sequence[str] | None = None,
    wait: bool = True,
) -> Iterator[ServerProcess]:
    """Start a server, by default with one process; kill it at the end of the block."""
    if "--workers" not in options:
        options = ("--workers", "1", *options)
    command = serve_command(bundle, state, *options, program=program)
    server = ServerProcess(command, log=log, env=env or {})
    try:
        if wait:
            server.wait_ready()
        yield server
    finally:
        server.client.close()
        if server.process.poll() is None:
            server.kill()

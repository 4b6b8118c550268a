"""Runs the workers of a server: one in this process, or several under a supervisor.

Both run the same `Worker` in the same uvicorn server on a socket that is opened here. A single
worker gets no process of its own: a supervisor would hold another copy of all imported libraries
(about 110 MB) and every metric would be written to a file in place of memory, only to restart a
process that Docker or systemd restarts anyway.
"""

from __future__ import annotations

import logging
import signal
import socket
from dataclasses import replace

import uvicorn

from service.core.bundle import manifest
from service.core.errors import InvalidConfig, KeymatchError
from service.logs import configure_logs
from service.server.connection import ServiceConnection
from service.server.memory_budget import within_budget
from service.server.serve_config import ServeConfig
from service.server.supervisor import supervise
from service.server.worker import Worker
from service.settings import ServerSettings

# Connections that wait to be accepted. While the server is too busy to accept them, further ones
# wait in their clients, which costs nothing here.
BACKLOG = 256

log = logging.getLogger("keymatch")


def launch(config: ServeConfig) -> int:
    """Serve until SIGTERM or SIGINT, answer what was accepted, and return the exit status.

    Raises `InvalidConfig` for an address that cannot be listened on or limits beyond the memory,
    and `BundleError` or `LogError` for a bundle or label log that cannot be served.
    """
    server = config.settings.server
    configure_logs(access=server.access_log)
    settings = within_budget(config.settings, manifest.read(config.bundle))
    config = replace(config, settings=settings)
    if server.workers > 1:
        return supervise(config, _uvicorn_config(server), _listen(server))
    return _run_in_this_process(config)


def _run_in_this_process(config: ServeConfig) -> int:
    server, worker = config.settings.server, Worker(config)
    uvicorn_config = _uvicorn_config(server)
    uvicorn_config.app, uvicorn_config.factory = worker, True
    uvicorn_server = uvicorn.Server(uvicorn_config)

    def stop(*_: object) -> None:
        uvicorn_server.should_exit = True

    # In force before uvicorn installs its own handlers, and again when it has drained and raises
    # its signal once more: the default handler would end an orderly stop as a death by SIGTERM.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    uvicorn_server.run(sockets=[_listen(server)])
    failure = worker.failure
    if isinstance(failure, KeymatchError):
        raise failure
    return 0 if uvicorn_server.started and failure is None else 1


def _listen(server: ServerSettings) -> socket.socket:
    """Open the socket first, so that a port in use is reported before a large bundle is read."""
    family = socket.AF_INET6 if ":" in server.host else socket.AF_INET
    try:
        listening = socket.create_server((server.host, server.port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise InvalidConfig(
            f"cannot listen on {server.host} port {server.port}: {error.strerror}"
        ) from error
    host, port = listening.getsockname()[:2]
    log.info("listening", extra={"host": host, "port": port})
    return listening


def _uvicorn_config(server: ServerSettings) -> uvicorn.Config:
    return uvicorn.Config(
        app="",  # set by whoever runs it
        workers=server.workers,
        loop="uvloop",
        http=ServiceConnection,
        backlog=BACKLOG,
        access_log=False,
        log_config=None,
        ws="none",
        timeout_keep_alive=server.idle_seconds,
        timeout_graceful_shutdown=server.shutdown_seconds,
        proxy_headers=False,
        server_header=False,
        date_header=False,
    )

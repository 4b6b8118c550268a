"""One worker: an engine and its application, in the serving process.

A single worker opens its engine while it listens, so probes are answered meanwhile. One of several
opens its engine first: all accept connections from one socket, and a connection must never reach a
worker that would answer 503 while another is ready.
"""

from __future__ import annotations

import gc
import logging
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event, Thread
from time import sleep
from types import FrameType

from fastapi import FastAPI

from service.core.errors import KeymatchError
from service.core.processes.low_priority import wake_when_orphaned
from service.core.processes.resources import share_heaps
from service.engine.engine import Engine
from service.http.access import Access
from service.http.app import build_app
from service.server.connection import ConnectionGuard
from service.settings import LEAST_CONNECTIONS_A_WAITER, Settings
from service.shards.cluster import ClusterConfig
from service.shards.places import PlacesFolder
from service.telemetry import Telemetry, configure_logs, write_logs_at_once

FAILED = 1  # exit status; uvicorn's own 3 would end all workers at once
MARGIN_SECONDS = 5  # beyond `shutdown_seconds`, for the engine to close
# The supervisor's signal that `leave_seconds` begin. When they are over, it sends SIGTERM.
LEAVE = signal.SIGUSR1
# How long a thread may keep the GIL if others wait for it. A query takes the GIL several times.
# Next to threads that run Python code it would wait for Python's default, 5 ms, each time.
SWITCH_SECONDS = 0.001
# Thresholds of the garbage collector's three generations. With Python's 700, 10 and 10, it walked
# over all objects several times per large answer, and held the GIL for tens of milliseconds.
COLLECTIONS = (10_000, 20, 100)
KILLING_SECONDS = 1  # of `MARGIN_SECONDS`, left after all child processes are killed

log = logging.getLogger("keymatch")


@dataclass(frozen=True, kw_only=True)
class ServeConfig:
    """Bundle, log, settings and access of a service; it is pickled for a worker's process."""

    bundle: Path | str  # a URL only until `launch` has fetched it
    bundles: Path | str  # the folder or URL of snapshots and of bundles that a reload opens
    cache: Path  # of copies of bundles from URLs
    state: Path | str  # the folder of the label log, or a PostgreSQL URL
    settings: Settings
    access: Access
    cluster: ClusterConfig | None = None  # how the memory is divided; None: it is not
    places: Path | None = None  # the folder that says where its shards answer

    def with_connections(self, most: int) -> ServeConfig:
        """Return this configuration with at most `most` connections, half of them for waiters."""
        settings = self.settings
        waiters = min(settings.engine.version_waiters, most // LEAST_CONNECTIONS_A_WAITER)
        server = replace(settings.server, connections=min(settings.server.connections, most))
        engine = replace(settings.engine, version_waiters=waiters)
        return replace(self, settings=replace(settings, engine=engine, server=server))


class Worker:
    """Builds the application when uvicorn calls it; it is pickled for a new process."""

    def __init__(self, config: ServeConfig, *, metrics: Path | None = None) -> None:
        """Configure a worker; one of several counts in the folder `metrics`."""
        self._config, self._metrics = config, metrics
        self._engine: Engine | None = None

    @property
    def failure(self) -> BaseException | None:
        """Return why the engine could not be opened, or None."""
        return None if self._engine is None else self._engine.failure

    def _ready(self) -> bool:
        return self._engine is not None and self._engine.ready()

    def __call__(self) -> FastAPI:
        """Build the application; one of several workers first opens its engine, or exits."""
        config = self._config
        server = config.settings.server
        telemetry = Telemetry(self._metrics)
        configure_logs(access=server.access_log, count_dropped=telemetry.dropped_log_lines.inc)
        if config.access.tokens is not None:
            config.access.tokens.look()  # a copy in a new process has no keys yet
        # Exclude all loaded modules from collections: walking their objects would block all answers
        # for some 50 ms.
        gc.collect()
        gc.freeze()
        gc.set_threshold(*COLLECTIONS)
        sys.setswitchinterval(SWITCH_SECONDS)
        share_heaps()
        leaving, stop_requested = Event(), Event()
        if self._metrics is not None:
            signal.signal(LEAVE, lambda *_: leaving.set())
            seconds = 0  # the supervisor waits
        else:
            seconds = server.leave_seconds
        _note_stop_signals(leaving, stop_requested, self._ready, leave_seconds=seconds)
        guard = ConnectionGuard(server, telemetry.connections, leaving=leaving.is_set)
        config = config.with_connections(guard.most)
        telemetry.allows(config.settings.by_name())
        self._engine = engine = Engine(
            Path(config.bundle),
            config.state,
            bundles=config.bundles,
            cache=config.cache,
            settings=config.settings.engine,
            telemetry=telemetry,
            open_shards=None if config.places is None else PlacesFolder(config.places).open,
        )
        _end_in_time(engine, stop_requested, server.shutdown_seconds)
        if self._metrics is not None:
            _stop_with_parent(server.shutdown_seconds)
            _open_or_exit(engine)
        return build_app(
            engine,
            settings=config.settings,
            access=config.access,
            telemetry=telemetry,
            failed=_stop,
            # A signal that came before the handlers above was seen by the server alone.
            ending=stop_requested.set,
            leaving=leaving.is_set,
            draining=stop_requested.is_set,
            connection_state={"guard": guard},
        )


def _open_or_exit(engine: Engine) -> None:
    try:
        engine.open()
    except Exception as error:
        if isinstance(error, KeymatchError):
            log.error("the worker cannot start", extra={"error": str(error)})
        else:
            log.error("defect", exc_info=error)
        sys.exit(FAILED)


def stop_signals() -> list[signal.Signals]:
    """Return the signals that drain this process, without SIGHUP if it is ignored (nohup)."""
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [signal.SIGTERM, signal.SIGINT, *([] if ignored else [signal.SIGHUP])]


def _note_stop_signals(
    leaving: Event, stopping: Event, ready: Callable[[], bool], *, leave_seconds: int
) -> None:
    """Set `stopping`, and stop the server, when this process receives one of `stop_signals`.

    If `leave_seconds` is above 0, the first SIGTERM to a process that is ready sets `leaving`, and
    the server stops that much later. Any further signal stops it at once.

    uvicorn's own handlers stop the server. uvicorn has none for SIGHUP, which is treated as
    SIGTERM.
    """
    handlers = {number: signal.getsignal(number) for number in stop_signals()}

    def stop(number: int, frame: FrameType | None) -> None:
        stopping.set()
        like = signal.SIGTERM if number == signal.SIGHUP else signal.Signals(number)
        uvicorn_handler = handlers[like]
        if callable(uvicorn_handler):
            uvicorn_handler(number, frame)

    def leave() -> None:
        if ready():
            leaving.set()
            log.info("leaving", extra={"seconds": leave_seconds})
            stopping.wait(leave_seconds)
        if not stopping.is_set():
            stop(signal.SIGTERM, None)

    # In a thread, since a handler must not log or ask the engine: it may interrupt either.
    thread = Thread(target=leave, name="leave", daemon=True)

    def handle(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGTERM and leave_seconds and thread.ident is None:
            thread.start()
        else:
            stop(number, frame)

    for number in handlers:
        signal.signal(number, handle)


def _end_in_time(engine: Engine, stop_requested: Event, shutdown_seconds: int) -> None:
    """End this process soon after `shutdown_seconds`, even if a thread blocks.

    A stopped child process, or a database or disk that does not answer, may block a thread forever.
    Acknowledged writes are on disk.
    """

    def wait() -> None:
        stop_requested.wait()
        write_logs_at_once()
        sleep(shutdown_seconds + MARGIN_SECONDS - KILLING_SECONDS)
        log.error("the service does not end in time; its child processes are killed")
        engine.kill_children()
        sleep(KILLING_SECONDS)
        os._exit(FAILED)

    Thread(target=wait, name="end-in-time", daemon=True).start()


def _stop() -> None:
    """Drain this worker, as SIGTERM would."""
    os.kill(os.getpid(), signal.SIGTERM)


def _stop_with_parent(shutdown_seconds: int) -> None:
    """Drain this worker once its parent has ended: nothing else would stop it."""
    parent = multiprocessing.parent_process()
    wake_when_orphaned()

    def wait() -> None:
        if parent is None:
            return
        parent.join()
        log.error("the parent process is gone")
        _stop()
        sleep(shutdown_seconds + MARGIN_SECONDS)
        os._exit(FAILED)  # draining hangs, and no parent is left to kill this process

    Thread(target=wait, name="parent", daemon=True).start()

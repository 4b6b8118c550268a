"""One worker: an engine and the application over it, in the process that serves.

A single worker opens its engine while it listens, so that probes answer meanwhile. One of several
opens its engine before it listens: all accept connections from one socket, so a connection must
never reach a worker that would answer 503 while another is ready.
"""

from __future__ import annotations

import gc
import logging
import multiprocessing
import os
import signal
import sys
from pathlib import Path
from threading import Event, Thread
from time import sleep
from types import FrameType

from fastapi import FastAPI

from service.core.errors import KeymatchError
from service.core.processes.heaps import share_heaps
from service.engine.engine import Engine
from service.http.app import build_app
from service.logs import configure_logs
from service.server.connection_guard import ConnectionGuard
from service.server.serve_config import ServeConfig
from service.telemetry import Telemetry

FAILED = 1  # the exit status; uvicorn's own 3 would end all workers at once
MARGIN_SECONDS = 5  # beyond `shutdown_seconds`, for the engine to close
# For how long a thread keeps the interpreter's lock where others wait for it. A query takes the
# lock several times, and beside threads that compute in Python it would wait for Python's 5 ms each
# time.
SWITCH_SECONDS = 0.001
# How many more objects than before make the garbage collector look at the young ones; after how
# many times it looks at the middle, and at all. With Python's 700, 10 and 10 a large answer made it
# walk over all objects time and again, with the interpreter's lock for tens of milliseconds.
COLLECTIONS = (10_000, 20, 100)
KILLING_SECONDS = 1  # of them, for what ends once all child processes are killed

log = logging.getLogger("keymatch")


class Worker:
    """Builds the application when uvicorn calls it; is pickled to reach a process of its own."""

    def __init__(self, config: ServeConfig, *, metrics: Path | None = None) -> None:
        """`metrics` is the folder in which several workers count, None for a single worker."""
        self._config, self._metrics = config, metrics
        self._engine: Engine | None = None

    @property
    def failure(self) -> BaseException | None:
        """Why the engine could not be opened, None where it could."""
        return None if self._engine is None else self._engine.failure

    def __call__(self) -> FastAPI:
        """Build the application; one of several opens its engine, or ends its process."""
        config = self._config
        server = config.settings.server
        configure_logs(access=server.access_log)
        # All modules are loaded and stay: a full collection would walk through what they hold for
        # some 50 ms, in which nothing is answered.
        gc.collect()
        gc.freeze()
        gc.set_threshold(*COLLECTIONS)
        sys.setswitchinterval(SWITCH_SECONDS)
        share_heaps()
        stop_requested = _note_stop_signals()
        telemetry = Telemetry(self._metrics)
        guard = ConnectionGuard(server, telemetry.connections)
        config = config.with_connections(guard.most)
        telemetry.allows(config.settings.by_name())
        self._engine = engine = config.engine(telemetry)
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
            draining=stop_requested.is_set,
            connection_state={"guard": guard},
        )


def _open_or_exit(engine: Engine) -> None:
    try:
        engine.open()
    except KeymatchError as error:
        log.error("the worker cannot start", extra={"error": str(error)})
        sys.exit(FAILED)
    except Exception as error:
        log.error("defect", exc_info=error)
        sys.exit(FAILED)


def _note_stop_signals() -> Event:
    """Return an event that is set when this process receives SIGTERM or SIGINT.

    uvicorn's own handlers go on to act on the signals: they hold the server, which is not
    reachable from here.
    """
    received = Event()

    def wrap(number: signal.Signals) -> None:
        uvicorn_handler = signal.getsignal(number)

        def handle(received_number: int, frame: FrameType | None) -> None:
            received.set()
            if callable(uvicorn_handler):
                uvicorn_handler(received_number, frame)

        signal.signal(number, handle)

    for number in (signal.SIGTERM, signal.SIGINT):
        wrap(number)
    return received


def _end_in_time(engine: Engine, stop_requested: Event, shutdown_seconds: int) -> None:
    """End this process soon after `shutdown_seconds`, whatever still keeps it from ending.

    A child process that has stopped, a database or a disk that does not answer may hold a thread
    for ever. What was acknowledged is on disk.
    """

    def wait() -> None:
        stop_requested.wait()
        sleep(shutdown_seconds + MARGIN_SECONDS - KILLING_SECONDS)
        log.error("the service does not end in time; its child processes are killed")
        engine.kill_children()
        sleep(KILLING_SECONDS)
        os._exit(FAILED)

    Thread(target=wait, name="end-in-time", daemon=True).start()


def _stop() -> None:
    """Make this worker drain, as SIGTERM from outside would."""
    os.kill(os.getpid(), signal.SIGTERM)


def _stop_with_parent(shutdown_seconds: int) -> None:
    """Drain this worker once its parent has ended for any reason: no one else would stop it."""
    parent = multiprocessing.parent_process()

    def wait() -> None:
        if parent is None:
            return
        parent.join()
        log.error("the parent process is gone")
        _stop()
        sleep(shutdown_seconds + MARGIN_SECONDS)
        os._exit(FAILED)  # draining hangs, and there is no parent left to kill this process

    Thread(target=wait, name="parent", daemon=True).start()

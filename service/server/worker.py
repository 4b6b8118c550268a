"""One worker of several: a process of its own, with an engine of its own over the common state.

A worker opens its engine before it listens. All workers accept from one socket, so a connection
never reaches one that would have to answer 503 while another is ready.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from time import sleep
from types import FrameType

from fastapi import FastAPI

from service.core.errors import KeymatchError
from service.engine.engine import Engine
from service.http.app import build_app
from service.http.auth import Access
from service.logs import configure_logs
from service.settings import Settings
from service.telemetry import Telemetry

FAILED = 1  # the exit status; uvicorn takes its own 3 as a reason to end all workers at once
MARGIN_SECONDS = 5  # beyond `shutdown_seconds`, for the engine to close

log = logging.getLogger("keymatch")


@dataclass(frozen=True, kw_only=True)
class Served:
    """What is served, how, and to whom."""

    bundle: Path
    bundles: Path  # the folder of snapshots, and of bundles that a reload opens by name
    state: Path | str
    settings: Settings
    access: Access

    def engine(self, telemetry: Telemetry) -> Engine:
        """An engine over bundle and state; not opened yet."""
        return Engine(
            self.bundle,
            self.state,
            bundles=self.bundles,
            settings=self.settings.engine,
            telemetry=telemetry,
        )


@dataclass(frozen=True, kw_only=True)
class WorkerApp:
    """Makes a worker's application; travels to the worker's process as a pickle."""

    served: Served
    metrics: Path  # the folder in which the workers count

    def __call__(self) -> FastAPI:
        """Open an engine and build the application; ends the process when that fails."""
        served = self.served
        configure_logs(access=served.settings.server.access_log)
        asked_to_end = _heed_signals()
        _end_with_parent(served.settings.server.shutdown_seconds)
        telemetry = Telemetry(self.metrics)
        engine = served.engine(telemetry)
        try:
            engine.open()
        except KeymatchError as error:
            log.error("the worker cannot start", extra={"error": str(error)})
            sys.exit(FAILED)
        except Exception as error:
            log.error("defect", exc_info=error)
            sys.exit(FAILED)
        return build_app(
            engine,
            settings=served.settings,
            access=served.access,
            telemetry=telemetry,
            failed=_end,
            draining=asked_to_end,
        )


def _heed_signals() -> Callable[[], bool]:
    """Tell from now on whether this worker was asked to end; uvicorn's server acts on it."""
    asked = Event()

    def heed(number: signal.Signals) -> None:
        # uvicorn's, which holds the server that nobody else here gets hold of.
        handle = signal.getsignal(number)

        def note(given: int, frame: FrameType | None) -> None:
            asked.set()
            if callable(handle):
                handle(given, frame)

        signal.signal(number, note)

    for number in (signal.SIGTERM, signal.SIGINT):
        heed(number)
    return asked.is_set


def _end() -> None:
    """Drain, as if the parent had asked for it."""
    os.kill(os.getpid(), signal.SIGTERM)


def _end_with_parent(shutdown_seconds: int) -> None:
    """Drain this worker once its parent is gone, however that ended: nobody else would."""
    parent = multiprocessing.parent_process()

    def wait() -> None:
        if parent is None:
            return
        parent.join()
        log.error("the parent process is gone")
        _end()
        sleep(shutdown_seconds + MARGIN_SECONDS)
        os._exit(FAILED)  # it hangs, and nobody is left to kill it

    Thread(target=wait, name="parent", daemon=True).start()

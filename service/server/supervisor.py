"""Several workers behind one socket: how they are started, watched, replaced and stopped.

The parent process answers no requests. It verifies bundle and label log once, so that wrong input
is one clear error, starts the workers and asks each for a heartbeat. It replaces a worker that died
or hangs, and gives up when workers keep ending before they are ready. SIGTERM and SIGINT drain all
workers.
"""

from __future__ import annotations

import logging
import os
import socket
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic

from uvicorn import Config
from uvicorn.supervisors import Multiprocess

from service.core.bundle.bundle import open_bundle
from service.core.errors import InvalidConfig
from service.core.label_log import open_log
from service.engine.bundle_directory import BundleDirectory
from service.engine.loaded_bundle import require_same_data
from service.server.serve_config import ServeConfig
from service.server.worker import MARGIN_SECONDS, Worker
from service.telemetry import forget_ended

EARLY_ENDS = 5  # workers in a row that ended before they were ready; then the parent gives up
# A worker without a heartbeat for so long is killed. The first heartbeat comes after all imports.
SILENT_SECONDS = 20

log = logging.getLogger("keymatch")


def supervise(config: ServeConfig, uvicorn_config: Config, listening: socket.socket) -> int:
    """Serve until SIGTERM or SIGINT; returns the exit status.

    Raises `BundleError` or `LogError` for what cannot be served, before any worker is started.
    """
    with _temporary_folder() as folder:
        uvicorn_config.app = Worker(config, metrics=Path(folder))
        uvicorn_config.factory = True
        uvicorn_config.timeout_worker_healthcheck = SILENT_SECONDS
        # Read by the workers when they import prometheus_client; this process already has.
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder
        supervisor = Supervisor(uvicorn_config, listening, metrics=Path(folder))
        _verify(config)
        supervisor.run()
    return int(supervisor.failed)


class Supervisor(Multiprocess):
    """uvicorn's supervisor; also gives up, bounds the stop's time and tidies up metrics files."""

    def __init__(self, config: Config, listening: socket.socket, *, metrics: Path) -> None:
        """Take over SIGTERM and SIGINT; `run` starts the workers."""
        super().__init__(config, [listening])
        self.failed = False
        self._metrics = metrics
        self._ready: set[int | None] = set()  # process ids
        self._early_ends = 0  # since a worker became ready

    def run(self) -> None:
        """Start the workers and watch them; stop them also when this process fails."""
        try:
            super().run()
        except BaseException:
            self.terminate_all()
            self.join_all()
            raise

    def keep_subprocess_alive(self) -> None:
        """Replace workers that died or hang; give up after `EARLY_ENDS` that were never ready."""
        if self.should_exit.is_set():
            return
        self._note_ready()
        watched = tuple(self.processes)
        super().keep_subprocess_alive()
        # uvicorn sets it here only for a worker whose exit status forbids replacing it.
        self.failed = self.should_exit.is_set()
        ended = [worker for worker in watched if worker not in self.processes]
        self._early_ends += sum(worker.pid not in self._ready for worker in ended)
        self._ready -= {worker.pid for worker in ended}
        forget_ended(self._metrics, {worker.pid for worker in self.processes if worker.pid})
        if self._early_ends >= EARLY_ENDS:
            log.error("workers keep ending before they are ready", extra={"ends": self._early_ends})
            self.failed = True
            self.should_exit.set()

    def _note_ready(self) -> None:
        for worker in self.processes:
            # The worker has its own copy of this end of the pipe. While the parent's copy is open,
            # a worker that died before its first heartbeat looks like one that is only slow.
            worker.child_conn.close()
            if worker.pid in self._ready:
                continue
            if worker.is_ready(self.config.timeout_worker_healthcheck):
                self._ready.add(worker.pid)
                self._early_ends = 0

    def terminate_all(self) -> None:
        """Send SIGTERM to all workers, which drain."""
        # An open socket would still take connections that no worker accepts any more.
        for listening in self.sockets:
            listening.close()
        super().terminate_all()

    def join_all(self) -> None:
        """Wait until all workers have drained; kill those that take too long."""
        grace = self.config.timeout_graceful_shutdown or 0
        deadline = monotonic() + grace + MARGIN_SECONDS
        for worker in self.processes:
            worker.process.join(max(0.0, deadline - monotonic()))
            if worker.process.is_alive():
                log.error("a worker did not drain in time", extra={"process": worker.pid})
                self.failed = True
                worker.process.kill()
                worker.process.join()


def _verify(config: ServeConfig) -> None:
    directory = BundleDirectory(folder=config.bundles, started_with=config.bundle)
    with closing(open_log(config.state)) as label_log:
        bundle = open_bundle(directory.current(label_log))
        if not config.settings.engine.other_data:
            require_same_data(bundle, label_log)


def _temporary_folder() -> TemporaryDirectory[str]:
    try:
        return TemporaryDirectory(prefix="keymatch-metrics-")
    except OSError as error:
        raise InvalidConfig(
            f"several workers share a temporary folder, which cannot be created: {error.strerror}"
        ) from error

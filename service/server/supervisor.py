"""Several workers behind one socket: how they are started, watched, replaced and ended.

The parent answers nothing. It verifies bundle and log once, so that wrong input is one clear error,
starts the workers and asks each for a heartbeat. One that died or hangs is replaced; where workers
keep ending before they are ready, it gives up. SIGTERM and SIGINT drain all workers.
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

from service.core.bundle import manifest
from service.core.bundle.bundle import open_bundle
from service.core.errors import InvalidConfig
from service.core.label_log import open_log
from service.engine.bundle_admin import Shelf
from service.server.worker import MARGIN_SECONDS, Served, WorkerApp
from service.telemetry import forget_ended

EARLY_ENDS = 5  # in a row, of workers that were never ready
# Until a worker without a heartbeat is killed; long, since imports come before its first one.
SILENT_SECONDS = 20

log = logging.getLogger("keymatch")


def serve_in_workers(served: Served, config: Config, listening: socket.socket) -> int:
    """Serve until SIGTERM or SIGINT; returns the exit status.

    Raises `BundleError` or `LogError` for what cannot be served, before any worker is started.
    """
    with _temporary_folder() as folder:
        config.app = WorkerApp(served=served, metrics=Path(folder))
        config.factory = True
        config.timeout_worker_healthcheck = SILENT_SECONDS
        # Not for this process, whose prometheus_client is imported, but for those to come.
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder
        workers = Workers(config, listening, metrics=Path(folder))
        _verify(served)
        workers.run()
    return int(workers.failed)


class Workers(Multiprocess):
    """uvicorn's supervisor, which also gives up, ends in time, and tidies up after the dead."""

    def __init__(self, config: Config, listening: socket.socket, *, metrics: Path) -> None:
        """Take over SIGTERM and SIGINT; `run` starts the workers."""
        super().__init__(config, [listening])
        self.failed = False
        self._metrics = metrics
        self._ready: set[int | None] = set()  # process ids
        self._early_ends = 0  # since a worker became ready

    def run(self) -> None:
        """Start the workers, watch them, and end them, also after a defect of ours."""
        try:
            super().run()
        except BaseException:
            self.terminate_all()
            self.join_all()
            raise

    def keep_subprocess_alive(self) -> None:
        """Replace workers that died or hang, unless they die too early too often."""
        if self.should_exit.is_set():
            return
        self._note_ready()
        watched = tuple(self.processes)
        super().keep_subprocess_alive()
        self.failed = self.should_exit.is_set()  # only here by a worker that must not be replaced
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
            # The worker has its own copy. While ours is open, a worker that dies before it answers
            # a heartbeat is waited for as if it were silent.
            worker.child_conn.close()
            if worker.pid in self._ready:
                continue
            if worker.is_ready(self.config.timeout_worker_healthcheck):
                self._ready.add(worker.pid)
                self._early_ends = 0

    def terminate_all(self) -> None:
        """Ask all workers to drain."""
        # Else clients could still connect, to wait for workers that accept no more.
        for listening in self.sockets:
            listening.close()
        super().terminate_all()

    def join_all(self) -> None:
        """Wait until all workers have drained; one that takes too long is killed."""
        grace = self.config.timeout_graceful_shutdown or 0
        deadline = monotonic() + grace + MARGIN_SECONDS
        for worker in self.processes:
            worker.process.join(max(0.0, deadline - monotonic()))
            if worker.process.is_alive():
                log.error("a worker did not drain in time", extra={"process": worker.pid})
                self.failed = True
                worker.process.kill()
                worker.process.join()


def _verify(served: Served) -> None:
    manifest.read(served.bundle)  # what is wrong there is told first
    shelf = Shelf(folder=served.bundles, started_with=served.bundle)
    with closing(open_log(served.state)) as label_log:
        open_bundle(shelf.current(label_log))


def _temporary_folder() -> TemporaryDirectory[str]:
    try:
        return TemporaryDirectory(prefix="keymatch-metrics-")
    except OSError as error:
        raise InvalidConfig(f"several workers need a temporary folder: {error.strerror}") from error

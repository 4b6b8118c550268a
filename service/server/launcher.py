"""Runs the workers of a server: one in this process, or several under a supervisor.

Both run the same `Worker` in the same uvicorn server on a socket that is opened here. A single
worker runs in this process. A supervisor would only restart it, as Docker or systemd do anyway, but
would need its own copy of all libraries (about 110 MB) and metrics in files instead of memory.

The supervisor answers no requests. It verifies bundle and label log once, so wrong input gives one
clear error. Then it starts the workers and asks each for a heartbeat. It replaces a worker that
died or hangs, and gives up if workers keep ending before they are ready. SIGTERM, SIGINT and SIGHUP
drain all workers.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic, sleep

import uvicorn
from uvicorn.supervisors import Multiprocess

from service.core.bundle import manifest
from service.core.bundle.bundle import open_bundle, without_parts
from service.core.bundle.object_store import held, local_bundle
from service.core.errors import InvalidConfig, KeymatchError
from service.core.label_log import open_log
from service.engine.bundle_directory import BundleDirectory
from service.engine.loaded_bundle import require_parts, require_same_builder, require_same_data
from service.server.connection import ServiceConnection
from service.server.memory_budget import within_budget
from service.server.worker import LEAVE, MARGIN_SECONDS, ServeConfig, Worker, stop_signals
from service.settings import ServerSettings
from service.shards.cluster import ClusterProcess
from service.telemetry import configure_logs, forget_ended, write_logs_at_once

EARLY_ENDS = 5  # the parent gives up after so many workers in a row that were never ready
# A worker without a heartbeat for this time is killed. The first one comes after all imports.
SILENT_SECONDS = 20
LOOK_SECONDS = 0.1  # between two looks for a further signal
NOTE_SECONDS = 1  # for a worker to say that it is ready before it leaves

# Connections that wait to be accepted. Further ones wait in their clients, at no cost here.
BACKLOG = 256
# uvicorn imports it in each of several workers.
SHARING_LOOP = "service.server.sharing:SharingLoop"

log = logging.getLogger("keymatch")


def supervise(config: ServeConfig) -> int:
    """Serve until SIGTERM, SIGINT or SIGHUP; returns the exit status.

    Raises `BundleError` or `LogError` if it cannot serve, before any worker is started.
    """
    try:
        temporary = TemporaryDirectory(prefix="keymatch-metrics-")
    except OSError as error:
        raise InvalidConfig(
            f"several workers share a temporary folder, which cannot be created: {error.strerror}"
        ) from error
    with temporary as folder:
        # Workers read this on importing prometheus_client, which this process has already done.
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder
        server, metrics = config.settings.server, Path(folder)
        uvicorn_config = _uvicorn_config(server, Worker(config, metrics=metrics))
        supervisor = Supervisor(
            uvicorn_config, _listen(server), metrics=metrics, leave_seconds=server.leave_seconds
        )
        _verify(config)
        supervisor.run()
    return int(supervisor.failed)


class Supervisor(Multiprocess):
    """uvicorn's supervisor; also gives up, stops in bounded time and removes old metrics files."""

    def __init__(
        self,
        config: uvicorn.Config,
        listening: socket.socket,
        *,
        metrics: Path,
        leave_seconds: int = 0,
    ) -> None:
        """Install the signal handlers; `run` starts the workers."""
        hangup = signal.getsignal(signal.SIGHUP)
        super().__init__(config, [listening])
        if hangup is signal.SIG_IGN:  # restore nohup's handler, which uvicorn has just replaced
            signal.signal(signal.SIGHUP, hangup)
        self.failed = False
        self._metrics, self._leave_seconds = metrics, leave_seconds
        self._ready: set[int | None] = set()  # process ids of workers that were ready
        self._early_ends = 0  # since a worker became ready

    def run(self) -> None:
        """Start and watch the workers; stop them even if this process fails."""
        try:
            super().run()
        except BaseException:
            self.terminate_all()
            self.join_all()
            raise

    def keep_subprocess_alive(self) -> None:
        """Replace workers that died or hang; give up after `EARLY_ENDS` that never were ready."""
        if self.should_exit.is_set():
            return
        self._note_ready(within=self.config.timeout_worker_healthcheck)
        watched = tuple(self.processes)
        super().keep_subprocess_alive()
        # uvicorn sets this only if a worker's exit status forbids replacing it.
        self.failed = self.should_exit.is_set()
        ended = [worker for worker in watched if worker not in self.processes]
        self._early_ends += sum(worker.pid not in self._ready for worker in ended)
        self._ready -= {worker.pid for worker in ended}
        forget_ended(self._metrics, {worker.pid for worker in self.processes if worker.pid})
        if self._early_ends >= EARLY_ENDS:
            log.error("workers keep ending before they are ready", extra={"ends": self._early_ends})
            self.failed = True
            self.should_exit.set()

    def handle_term(self) -> None:
        """If a worker is ready, let all leave; then drain all. A further signal ends the wait."""
        if self._leave_seconds:
            self._note_ready(within=NOTE_SECONDS)
        deadline = monotonic() + (self._leave_seconds if self._ready else 0)
        if monotonic() < deadline:
            log.info("leaving", extra={"seconds": self._leave_seconds})
            for worker in self.processes:
                # A worker that opens leaves as soon as it is ready, and one that has no handler yet
                # ends. Without the signal it would begin to take connections and keep them.
                if worker.pid and worker.process.is_alive():
                    os.kill(worker.pid, LEAVE)
        while (
            monotonic() < deadline
            and not self.signal_queue
            and any(worker.process.is_alive() for worker in self.processes)
        ):
            sleep(LOOK_SECONDS)
        super().handle_term()

    def handle_hup(self) -> None:
        """Drain at once, as after SIGINT. By default, uvicorn would replace all workers."""
        self.should_exit.set()

    def _note_ready(self, *, within: float) -> None:
        """Ask the workers that have not been ready whether they are, each for `within` seconds."""
        for worker in self.processes:
            # Close the parent's copy of the worker's end of the pipe. Otherwise a worker that died
            # before its first heartbeat looks like a slow one.
            worker.child_conn.close()
            if worker.pid in self._ready:
                continue
            if worker.is_ready(within):
                self._ready.add(worker.pid)
                self._early_ends = 0

    def terminate_all(self) -> None:
        """Send SIGTERM to all workers, so they drain."""
        # An open socket would still queue connections that no worker accepts any more.
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
    directory = BundleDirectory.of(Path(config.bundle), config.bundles, config.cache)
    with closing(open_log(config.state)) as label_log:
        bundle = open_bundle(directory.current(label_log), parts=_parts(config))
        if config.settings.engine.device == "cpu":
            require_same_builder(bundle, label_log)
        if not config.settings.engine.other_data:
            require_same_data(bundle, label_log)


def _parts(config: ServeConfig) -> Collection[int] | None:
    """Return the parts of the bundle that workers open; None: all. Shards search the others."""
    return None if config.cluster is None else ()


def launch(config: ServeConfig) -> int:
    """Serve until SIGTERM, SIGINT or SIGHUP, finish accepted requests, return the exit status.

    A bundle at a URL is fetched first, once for all workers.

    Raises `InvalidConfig` for an unusable address or limits beyond the memory, and `BundleError` or
    `LogError` for a bundle or label log that cannot be served.
    """
    server = config.settings.server
    configure_logs(access=server.access_log)
    try:
        bundle = local_bundle(config.bundle, config.cache, without_store=True)
        with held(bundle):
            facts = manifest.read(bundle)
            if config.cluster is not None:
                require_parts(facts, config.cluster.shards)
            settings = within_budget(config.settings, without_parts(facts, _parts(config)))
            with _placed(replace(config, bundle=bundle, settings=settings)) as placed:
                return supervise(placed) if server.workers > 1 else _run_in_this_process(placed)
    finally:
        write_logs_at_once()  # before the caller prints the error to stderr, too


@contextmanager
def _placed(config: ServeConfig) -> Iterator[ServeConfig]:
    """Look after the shards of a divided memory, if it is divided, until the block ends."""
    if config.cluster is None:
        yield config
        return
    with TemporaryDirectory(prefix="keymatch-shards-") as folder:
        engine = config.settings.engine
        cluster = ClusterProcess(config.cluster, Path(folder), state=config.state, settings=engine)
        try:
            yield replace(config, places=Path(folder))
        finally:
            cluster.close()


def _run_in_this_process(config: ServeConfig) -> int:
    server, worker = config.settings.server, Worker(config)
    uvicorn_server = uvicorn.Server(_uvicorn_config(server, worker))

    def stop(*_: object) -> None:
        uvicorn_server.should_exit = True

    # These handlers act before uvicorn installs its own, and after draining, when uvicorn raises
    # its signal again: the default handler would turn an orderly stop into a death by SIGTERM.
    for number in stop_signals():
        signal.signal(number, stop)
    uvicorn_server.run(sockets=[_listen(server)])
    failure = worker.failure
    if isinstance(failure, KeymatchError):
        raise failure
    return 0 if uvicorn_server.started and failure is None else 1


def _listen(server: ServerSettings) -> socket.socket:
    """Open the socket early: a port in use is then reported before a large bundle is read."""
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


def _uvicorn_config(server: ServerSettings, worker: Worker) -> uvicorn.Config:
    return uvicorn.Config(
        worker,
        factory=True,
        workers=server.workers,
        timeout_worker_healthcheck=SILENT_SECONDS,
        loop="uvloop" if server.workers == 1 else SHARING_LOOP,
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

"""The engine: opens bundle, memory, label log and threads, connects them, and closes them.

predict  -> ReadPath                                 -> predictor and newest view
write    -> WritePath -> LabelEncoding -> Writer     -> label log -> new view
                                          ^ Sealer     (builds segments of full blocks)
snapshot, reload -> BundleAdmin ----------^            (serves another bundle)
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from importlib.metadata import version as library_version
from pathlib import Path
from time import perf_counter
from typing import Any

from service.core.bundle import manifest
from service.core.errors import NotReady
from service.core.label_log import LabelLog, open_log
from service.core.memory.view import View
from service.core.types import Answer, NewLabel, PredictOptions
from service.engine.bundle_admin import BundleAdmin
from service.engine.bundle_directory import BundleDirectory
from service.engine.devices import open_device, segment_source
from service.engine.label_encoding import LabelEncoding
from service.engine.loaded_bundle import LoadedBundle, load_bundle
from service.engine.reading.arrivals import Arrivals
from service.engine.reading.query_request import Client, Serializer
from service.engine.reading.read_path import ReadPath
from service.engine.reading.task_queue import TaskQueue
from service.engine.sealer import Sealer
from service.engine.status import Gauges, State, describe
from service.engine.writing.operations import Operation, PutLabels
from service.engine.writing.processor_share import ProcessorShare
from service.engine.writing.write_path import WritePath
from service.engine.writing.write_queue import RequestKey
from service.engine.writing.writer import Writer
from service.engine.writing.written import Written
from service.settings import EngineSettings
from service.telemetry import Telemetry

log = logging.getLogger("keymatch")


class Engine:
    """One bundle, one label log, as many answering threads as cores, one writing thread.

    `open` and `close` block; everything else belongs to the event loop.
    """

    def __init__(
        self,
        bundle: Path,
        state: Path | str,
        *,
        bundles: Path | None = None,
        settings: EngineSettings,
        telemetry: Telemetry,
    ) -> None:
        """Nothing is opened yet.

        `state` is a folder or a PostgreSQL URL, `bundles` the folder from which a reload opens by
        name, by default the one that contains `bundle`.
        """
        self._directory = BundleDirectory(
            folder=bundles or bundle.absolute().parent, started_with=bundle
        )
        self._state_place = state
        self._settings, self._telemetry = settings, telemetry
        self._queue = TaskQueue(settings)
        self.arrivals = Arrivals(self._queue)
        self.state = State.STARTING
        self.failure: BaseException | None = None
        self._log: LabelLog | None = None
        self._kill_children: list[Callable[[], None]] = []  # of what was started

    def open(self) -> None:
        """Verify the bundle, replay the log, answer a warm-up query; then be ready.

        Raises what stands in the way, and keeps it as `failure`.
        """
        start = perf_counter()
        try:
            self._open()
        except BaseException as error:
            self.state, self.failure = State.FAILED, error
            if self._log is not None:
                self._log.close()
            raise
        self.state = State.READY
        log.info("ready", extra={"seconds": round(perf_counter() - start, 2)})

    def _open(self) -> None:
        settings, telemetry = self._settings, self._telemetry
        manifest.read(self._directory.started_with)  # before a log is created for a wrong bundle
        self._device = open_device(settings.device)
        self._log = open_log(self._state_place)
        self._loaded = load_bundle(
            self._directory.current(self._log), self._log, settings, device=self._device
        )
        self._encoding = LabelEncoding(
            self._loaded,
            processes=settings.threads,
            share=settings.write_share,
            patience=settings.write_deadline_ms / 1000,
        )
        self._kill_children.append(self._encoding.kill)
        self._reads = ReadPath(
            self._queue, telemetry, loaded=lambda: self._loaded, settings=settings
        )
        self._loaded.warm_up(self._reads.submit, threads=settings.threads)
        self._encoding.wait_until_warm()
        self._open_writer(self._log)
        self._kill_children += [self._sealer.interrupt, self._admin.close]
        self._gauges = Gauges(telemetry)
        self._writer.rehearse().result()
        self._log.watch(self._writer.wake)
        self._publish(self._loaded)

    def _open_writer(self, label_log: LabelLog) -> None:
        """Start the writer's thread, and what hands work to it."""
        settings, telemetry = self._settings, self._telemetry
        patience = settings.write_deadline_ms / 1000
        share = ProcessorShare(settings.write_share, cores=settings.threads)
        self._writer = Writer(
            log=label_log,
            loaded=self._loaded,
            telemetry=telemetry,
            queue_items=settings.queue_labels,
            queue_delay=patience / 2,
            published=self._publish,
            reload_requested=lambda request: self._admin.follow(request),
            encoding_took=share.spend,
            check_pause=settings.log_check_minutes * 60,
        )
        self._writes = WritePath(
            self._encoding,
            self._writer,
            loaded=lambda: self._loaded,
            share=share,
            queue_items=settings.queue_labels,
            patience=patience,
        )
        self._sealer = Sealer(
            store=segment_source(self._device, label_log, settings),
            writer=self._writer,
            loaded=lambda: self._loaded,
            telemetry=telemetry,
        )
        self._admin = BundleAdmin(
            directory=self._directory,
            state=self._state_place,
            label_log=label_log,
            writer=self._writer,
            encoding=self._encoding,
            submit=self._reads.submit,
            settings=settings,
            device=self._device,
            telemetry=telemetry,
        )

    def _publish(self, loaded: LoadedBundle) -> None:
        """Called from the writer's thread after each new view."""
        if loaded is not self._loaded or self.state is State.STARTING:
            self._telemetry.serves(version=library_version("keymatch"), bundle=loaded.name)
        self._loaded = loaded
        self._reads.waiters.notify()
        if next(loaded.memory.view.all_unsealed(), None) is not None:
            self._sealer.wake()

    def close(self) -> None:
        """Finish what was admitted, then stop all threads and child processes."""
        before, self.state = self.state, State.DRAINING
        if before is not State.READY:
            return
        self._admin.close()
        self._encoding.close()
        self._sealer.close()
        self._writer.close()
        self._reads.close()
        if self._log is not None:
            self._log.close()

    def kill_children(self) -> None:
        """Kill all child processes, where closing takes too long; may be called by any thread."""
        for kill in self._kill_children:
            kill()

    # Requests ----------------------------------------------------------------------------

    @property
    def loaded(self) -> LoadedBundle:
        """The bundle that is served; raises `NotReady` unless the engine answers."""
        self._require_ready()
        return self._loaded

    @property
    def view(self) -> View:
        """The newest view; raises `NotReady` unless the engine answers."""
        return self.loaded.memory.view

    async def predict(
        self,
        queries: Sequence[str],
        base: PredictOptions,
        *,
        deadline: float,
        min_version: int = 0,
        client: Client | None = None,
        serialize: Serializer | None = None,
        **requested: Any,
    ) -> tuple[str, Answer]:
        """Answer queries from one view of at least `min_version`; returns the bundle's name too.

        `requested` are options for which the bundle has defaults, None where the request has none;
        `deadline` is a time of `monotonic`. Raises `NotReady`, or as `ReadPath.predict`.
        """
        self._require_ready()
        return await self._reads.predict(
            queries,
            base,
            deadline=deadline,
            min_version=min_version,
            client=client,
            serialize=serialize,
            **requested,
        )

    async def write(self, operation: Operation, *, request: RequestKey | None = None) -> Written:
        """Carry out an operation; returns once it is synced to the log and visible.

        Raises `NotReady`, `Overloaded`, `DeadlineExceeded`, `MemoryFull`, `KeyReused`, `LogError`
        or what the operation itself raises; then nothing was written, or, after a `LogError`,
        possibly all.
        """
        self._require_ready()
        return await self._writes.write(operation, request=request)

    async def put_labels(self, labels: Sequence[NewLabel]) -> Written:
        """Create or replace labels; raises as `write`."""
        return await self.write(PutLabels(labels=tuple(labels)))

    async def snapshot(self, name: str | None) -> tuple[str, int]:
        """Write what is served as a new bundle; returns its name and the version it holds.

        Raises `NotReady`, or as `BundleAdmin.snapshot`.
        """
        self._require_ready()
        return await asyncio.to_thread(self._admin.snapshot, self._loaded, name)

    async def cancel_snapshot(self) -> str | None:
        """Give up the snapshot that is being written; returns its name, None if there is none."""
        self._require_ready()
        return await asyncio.to_thread(self._admin.cancel_snapshot)

    async def reload(self, name: str, *, other_data: bool = False) -> tuple[str, int]:
        """Serve another bundle; returns its name and the version of its memory.

        Raises `NotReady`, or as `BundleAdmin.reload`.
        """
        self._require_ready()
        loaded = await asyncio.to_thread(self._admin.reload, name, other_data=other_data)
        return loaded.name, loaded.memory.view.version

    # Status ------------------------------------------------------------------------------

    def ready(self) -> bool:
        """Whether queries are answered and writes can still succeed."""
        return self.state is State.READY and self._writer.alive and self._writer.log_in_place

    def broken(self) -> bool:
        """Whether only a restart can help."""
        return self.state is State.FAILED or (self.state is State.READY and not self._writer.alive)

    def writes(self) -> str:
        """`accepted`, `limited` to few texts each, or `failing`; of an engine that is ready."""
        if self._writer.failing:
            return "failing"
        return "accepted" if self._encoding.warm else "limited"

    def describe(self) -> dict[str, Any]:
        """What is served, for GET /info; raises `NotReady`."""
        return describe(self.view, self._admin.snapshot_progress())

    def measure(self) -> None:
        """Bring the gauges and the cache's counters up to date, for GET /metrics."""
        if self.state is State.READY:
            self._gauges.update(
                self._loaded,
                lag=self._writer.lag,
                log_damaged=self._writer.log_damaged,
                waiting_queries=self._queue.depth,
                version_waiters=len(self._reads.waiters),
            )

    def _require_ready(self) -> None:
        if self.state is not State.READY:
            raise NotReady(f"the service is {self.state.value}")

"""The engine: opens bundle, memory, label log and threads, connects them, and closes them.

predict  -> ReadPath                                 -> predictor and newest view
write    -> WritePath -> LabelEncoding -> Writer     -> label log -> new view
                                          ^ Sealer     (builds segments of full blocks)
snapshot, reload -> BundleAdmin ----------^            (serves another bundle)
"""

from __future__ import annotations

import asyncio
import logging
import os
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version as library_version
from pathlib import Path
from time import perf_counter
from typing import Any

from service.core.bundle import manifest
from service.core.errors import NotReady
from service.core.index.faiss_hnsw import search_in_one_thread
from service.core.label_log import LabelLog, open_log
from service.core.memory.segment_store import SegmentStore
from service.core.memory.view import View
from service.core.types import Answer, NewLabel, PredictOptions
from service.engine.bundle_admin import BundleAdmin
from service.engine.bundle_directory import BundleDirectory
from service.engine.label_encoding import LabelEncoding
from service.engine.loaded_bundle import LoadedBundle, load_bundle
from service.engine.read_path import ReadPath
from service.engine.sealer import Sealer
from service.engine.status import Gauges, State, describe
from service.engine.writing.operations import Operation, PutLabels
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
        self.state = State.STARTING
        self.failure: BaseException | None = None
        self._log: LabelLog | None = None

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
        self._log = open_log(self._state_place)
        self._loaded = load_bundle(self._directory.current(self._log), self._log, settings)
        self._pool = ThreadPoolExecutor(
            settings.threads, "answer", initializer=search_in_one_thread
        )
        self._loaded.warm_up(self._pool, threads=settings.threads)
        self._reads = ReadPath(
            self._pool,
            telemetry,
            loaded=lambda: self._loaded,
            queue_queries=settings.queue_queries,
        )
        self._encoding = LabelEncoding(self._loaded, processes=settings.threads)
        self._open_writer(self._log)
        self._gauges = Gauges(telemetry)
        self._log.watch(self._writer.wake)
        self._publish(self._loaded)

    def _open_writer(self, label_log: LabelLog) -> None:
        """Start the writer's thread, and what hands work to it."""
        settings, telemetry = self._settings, self._telemetry
        self._writer = Writer(
            log=label_log,
            loaded=self._loaded,
            telemetry=telemetry,
            queue_items=settings.queue_labels,
            published=self._publish,
            reload_requested=lambda request: self._admin.follow(request),
        )
        self._writes = WritePath(
            self._encoding,
            self._writer,
            loaded=lambda: self._loaded,
            queue_items=settings.queue_labels,
        )
        self._sealer = Sealer(
            store=SegmentStore(self._segments_folder(label_log)),
            writer=self._writer,
            loaded=lambda: self._loaded,
            telemetry=telemetry,
        )
        self._admin = BundleAdmin(
            directory=self._directory,
            state=self._state_place,
            label_log=label_log,
            writer=self._writer,
            pool=self._pool,
            settings=settings,
            telemetry=telemetry,
        )

    def _segments_folder(self, label_log: LabelLog) -> Path:
        """In the state folder; for a log on another machine, in this one's temporary folder."""
        if self._settings.segments is not None:
            return self._settings.segments
        if isinstance(self._state_place, Path):
            return self._state_place / "segments"
        return Path(tempfile.gettempdir()) / f"keymatch-{os.getuid()}-{label_log.id}"

    def _publish(self, loaded: LoadedBundle) -> None:
        """Called from the writer's thread after each new view."""
        if loaded is not self._loaded or self.state is State.STARTING:
            self._telemetry.serves(version=library_version("keymatch"), bundle=loaded.name)
        self._loaded = loaded
        self._reads.waiters.notify()
        if next(loaded.memory.view.unsealed_plans(), None) is not None:
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
        self._pool.shutdown()
        if self._log is not None:
            self._log.close()

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
        **requested: Any,
    ) -> tuple[str, Answer]:
        """Answer queries from one view of at least `min_version`; returns the bundle's name too.

        `requested` are options for which the bundle has defaults, None where the request has none;
        `deadline` is a time of `monotonic`. Raises `NotReady`, `Overloaded` or
        `DeadlineExceeded`.
        """
        self._require_ready()
        return await self._reads.predict(
            queries, base, deadline=deadline, min_version=min_version, **requested
        )

    async def write(self, operation: Operation, *, request: RequestKey | None = None) -> Written:
        """Carry out an operation; returns once it is synced to the log and visible.

        Raises `NotReady`, `Overloaded`, `MemoryFull`, `KeyReused`, `LogError` or what the
        operation itself raises; then nothing was written, or, after a `LogError`, possibly all.
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

    async def reload(self, name: str) -> tuple[str, int]:
        """Serve another bundle; returns its name and the version of its memory.

        Raises `NotReady`, or as `BundleAdmin.reload`.
        """
        self._require_ready()
        loaded = await asyncio.to_thread(self._admin.reload, name)
        return loaded.name, loaded.memory.view.version

    # Status ------------------------------------------------------------------------------

    def ready(self) -> bool:
        """Whether queries are answered and writes can still succeed."""
        return self.state is State.READY and self._writer.alive

    def broken(self) -> bool:
        """Whether only a restart can help."""
        return self.state is State.FAILED or (self.state is State.READY and not self._writer.alive)

    def log_failure(self) -> bool:
        """Whether the label log could not be used when it was last tried."""
        return self.state is State.READY and bool(self._writer.failing)

    def describe(self) -> dict[str, Any]:
        """What is served, for GET /info; raises `NotReady`."""
        return describe(self.view)

    def measure(self) -> None:
        """Bring the gauges and the cache's counters up to date, for GET /metrics."""
        if self.state is State.READY:
            self._gauges.update(
                self._loaded,
                lag=self._writer.lag,
                waiting_queries=self._reads.admission.waiting,
            )

    def _require_ready(self) -> None:
        if self.state is not State.READY:
            raise NotReady(f"the service is {self.state.value}")

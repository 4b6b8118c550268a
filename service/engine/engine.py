"""The engine owns bundle, memory, log and threads: admission, answering, writing, readiness."""

from __future__ import annotations

import asyncio
import logging
import os
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from enum import Enum
from importlib.metadata import version as library_version
from pathlib import Path
from time import monotonic, perf_counter
from typing import Any

from service.core.bundle import manifest
from service.core.errors import DeadlineExceeded, NotReady, Overloaded
from service.core.index.faiss_hnsw import search_in_one_thread
from service.core.label_log import LabelLog, open_log
from service.core.memory.segment_store import SegmentStore
from service.core.memory.view import View
from service.core.types import Answer, NewLabel, PredictOptions
from service.engine.bundle_admin import Administration, Shelf
from service.engine.label_encoding import Learner
from service.engine.loaded_bundle import Serving, open_serving
from service.engine.sealer import Sealer
from service.engine.view_waiters import Publication
from service.engine.write_operations import Operation, PutLabels, Written, changed
from service.engine.write_queue import Job, RequestKey
from service.engine.writer import Writer
from service.settings import EngineSettings
from service.telemetry import Telemetry

TASK_QUERIES = 8  # queries that one task answers, so that a large request cannot hold a thread long

log = logging.getLogger("keymatch")


class State(Enum):
    """Where the engine stands; only `READY` answers."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"


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
        """Remember where things are; nothing is opened yet.

        `state` is a folder or a PostgreSQL URL, `bundles` the folder from which a reload opens by
        name, by default the one that holds `bundle`.
        """
        self._shelf = Shelf(folder=bundles or bundle.absolute().parent, started_with=bundle)
        self._state_place = state
        self._settings, self._telemetry = settings, telemetry
        self.state = State.STARTING
        self.failure: BaseException | None = None
        self._log: LabelLog | None = None
        self._waiting = 0  # queries; touched on the event loop only
        self._encoding = 0  # labels and instances that are being encoded; likewise
        self._published = Publication()
        self._counted: tuple[Any, int, int] = (None, 0, 0)  # cache hits and misses as counted

    # Opening and closing -----------------------------------------------------------------

    def open(self) -> None:
        """Verify the bundle, replay the log, answer a warm-up query; then be ready.

        Raises what stands in the way, and remembers it as `failure`.
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
        settings = self._settings
        manifest.read(self._shelf.started_with)  # what is wrong there is told first
        self._log = open_log(self._state_place)
        self._serving = open_serving(self._shelf.current(self._log), self._log, settings)
        self._pool = ThreadPoolExecutor(
            settings.threads, "answer", initializer=search_in_one_thread
        )
        self._serving.warm_up(self._pool, threads=settings.threads)
        self._learner = Learner(self._serving, processes=settings.threads)
        self._writer = Writer(
            log=self._log,
            serving=self._serving,
            telemetry=self._telemetry,
            queue_items=settings.queue_labels,
            published=self._publish,
            wished=lambda wish: self._administration.follow(wish),
        )
        self._sealer = Sealer(
            store=SegmentStore(self._segments_folder(self._log)),
            writer=self._writer,
            serving=lambda: self._serving,
            telemetry=self._telemetry,
        )
        self._administration = Administration(
            shelf=self._shelf,
            state=self._state_place,
            label_log=self._log,
            writer=self._writer,
            pool=self._pool,
            settings=settings,
            telemetry=self._telemetry,
        )
        self._log.watch(self._writer.wake)
        self._publish(self._serving)

    def _segments_folder(self, label_log: LabelLog) -> Path:
        """Beside the log, or, where that is on another machine, in this one's temporary folder."""
        if self._settings.segments is not None:
            return self._settings.segments
        if isinstance(self._state_place, Path):
            return self._state_place / "segments"
        return Path(tempfile.gettempdir()) / f"keymatch-{os.getuid()}-{label_log.id}"

    def _publish(self, serving: Serving) -> None:
        """Called from the writer's thread after each new view."""
        if serving is not self._serving or self.state is State.STARTING:
            self._telemetry.serves(version=library_version("keymatch"), bundle=serving.name)
        self._serving = serving
        self._published.announce()
        if next(serving.memory.view.unsealed_plans(), None) is not None:
            self._sealer.wake()

    def close(self) -> None:
        """Finish what was admitted and let go of everything."""
        was, self.state = self.state, State.DRAINING
        if was is not State.READY:
            return
        self._administration.close()
        self._learner.close()
        self._sealer.close()
        self._writer.close()
        self._pool.shutdown()
        if self._log is not None:
            self._log.close()

    # Reading -----------------------------------------------------------------------------

    @property
    def serving(self) -> Serving:
        """What is served; raises `NotReady` unless the engine answers."""
        self._require_ready()
        return self._serving

    @property
    def view(self) -> View:
        """The newest view; raises `NotReady` unless the engine answers."""
        return self.serving.memory.view

    async def predict(
        self,
        queries: Sequence[str],
        base: PredictOptions,
        *,
        deadline: float,
        min_version: int = 0,
        **given: Any,
    ) -> tuple[str, Answer]:
        """Answer queries from one view of at least `min_version`; returns the bundle's name too.

        `given` are options for which the bundle has defaults, None where the request has none;
        `deadline` is a time of `monotonic`. Raises `NotReady`, `Overloaded` or
        `DeadlineExceeded`.
        """
        self._require_ready()
        self._admit(len(queries))
        try:
            async with asyncio.timeout(deadline - monotonic()):
                await self._published.wait(lambda: self._serving.memory.view.version >= min_version)
                serving = self._serving
                options = serving.options(base, **given)
                return serving.name, await self._answer(serving, queries, options, deadline)
        except TimeoutError as error:
            raise DeadlineExceeded("the deadline passed before the answer was there") from error
        finally:
            self._waiting -= len(queries)

    async def _answer(
        self, serving: Serving, queries: Sequence[str], options: PredictOptions, deadline: float
    ) -> Answer:
        view, loop = serving.memory.view, asyncio.get_running_loop()
        tasks = [
            loop.run_in_executor(
                self._pool,
                self._task,
                serving,
                view,
                queries[start : start + TASK_QUERIES],
                options,
                perf_counter(),
                deadline,
            )
            for start in range(0, len(queries), TASK_QUERIES)
        ]
        answers = await asyncio.gather(*tasks)
        seconds: dict[str, float] = {}
        for answer in answers:
            for stage, value in answer.seconds.items():
                seconds[stage] = seconds.get(stage, 0.0) + value
        predictions = tuple(found for answer in answers for found in answer.predictions)
        return Answer(version=view.version, predictions=predictions, seconds=seconds)

    def _task(
        self,
        serving: Serving,
        view: View,
        queries: Sequence[str],
        options: PredictOptions,
        queued: float,
        deadline: float,
    ) -> Answer:
        """Answer a part of a request, in a thread of the pool."""
        waited = perf_counter() - queued
        if monotonic() > deadline:
            raise DeadlineExceeded("the deadline passed while the request waited")
        answer = serving.predictor.predict(view, queries, options)
        answer = replace(answer, seconds={"queue": waited, **answer.seconds})
        self._telemetry.observe_stages(answer.seconds)
        self._telemetry.batch_size.labels("predict").observe(len(queries))
        return answer

    # Writing -----------------------------------------------------------------------------

    async def write(
        self,
        operation: Operation,
        *,
        request: RequestKey | None = None,
    ) -> Written:
        """Carry out an operation; returns once it is synced to the log and visible.

        Raises `NotReady`, `Overloaded`, `MemoryFull`, `KeyReused`, `LogError` or what the
        operation itself raises; then nothing was written, or, after a `LogError`, possibly all.
        """
        self._require_ready()
        items = operation.items
        if self._encoding and self._encoding + len(items) > self._settings.queue_labels:
            raise Overloaded(f"{self._encoding} labels wait to be encoded", retry_after=1)
        self._encoding += len(items)
        serving = self._serving
        try:
            new = {id(item) for item in changed(items, self.view.labels)}
            encoded_items = await self._learner.make(
                serving, items, [id(item) in new for item in items]
            )
        finally:
            self._encoding -= len(items)
        job = Job(
            operation=operation,
            encoded_items=encoded_items,
            encoder_fingerprint=serving.representer.fingerprint,
            request=request,
        )
        future = self._writer.submit(job)
        # Shielded: a client that goes away must not cancel what may already be on the disk.
        return await asyncio.shield(asyncio.wrap_future(future))

    async def put_labels(self, labels: Sequence[NewLabel]) -> Written:
        """Create or replace labels, see `write`."""
        return await self.write(PutLabels(labels=tuple(labels)))

    # Administration ----------------------------------------------------------------------

    async def snapshot(self, name: str | None) -> tuple[str, int]:
        """Write all that is served as a new bundle, see `Administration.snapshot`."""
        return await asyncio.to_thread(self._administration.snapshot, self.serving, name)

    async def reload(self, name: str) -> tuple[str, int]:
        """Serve another bundle, see `Administration.reload`; returns its name and the version."""
        self._require_ready()
        serving = await asyncio.to_thread(self._administration.reload, name)
        return serving.name, serving.memory.view.version

    # Being watched -----------------------------------------------------------------------

    def ready(self) -> bool:
        """Whether queries are answered: checks the parts, not the clock.

        A writer that has died is unready too: the memory would never change again.
        """
        return self.state is State.READY and self._writer.alive

    def broken(self) -> bool:
        """Whether only a restart can help."""
        return self.state is State.FAILED or (self.state is State.READY and not self._writer.alive)

    def log_failure(self) -> bool:
        """Whether the label log could not be used when it was last tried."""
        return self.state is State.READY and bool(self._writer.failing)

    def describe(self) -> dict[str, Any]:
        """What is served, for GET /info."""
        view = self.view
        return {
            "version": view.version,
            "bundle": manifest.as_document(view.bundle.manifest),
            "novel_labels": "text" if view.bundle.novel is None else "irene",
            "memory": {
                "base_rows": view.base_rows,
                "sealed_rows": view.sealed_rows,
                "live_rows": view.live_rows - view.sealed_rows,
                "dead_rows": view.dead_rows,
                "segments": sum(1 for part in view.parts) + 1,
                "unsealed_segments": sum(1 for _ in view.unsealed_plans()),
                "labels": len(view.labels),
                "live_labels": len(view.labels.live),
            },
        }

    def measure(self) -> None:
        """Bring the gauges and the cache's counters up to date, for GET /metrics."""
        if self.state is not State.READY:
            return
        serving, telemetry = self._serving, self._telemetry
        view = serving.memory.view
        rows = {
            "base": view.base_rows,
            "sealed": view.sealed_rows,
            "live": view.live_rows - view.sealed_rows,
            "tombstone": view.dead_rows,
        }
        for kind, count in rows.items():
            telemetry.memory_rows.labels(kind).set(count)
        telemetry.memory_version.set(view.version)
        telemetry.log_lag_events.set(self._writer.lag)
        telemetry.queue_depth.set(self._waiting)
        cache = serving.cache
        counted = self._counted[1:] if self._counted[0] is cache else (0, 0)
        hits, misses = cache.hits, cache.misses
        telemetry.cache_hits.inc(hits - counted[0])
        telemetry.cache_misses.inc(misses - counted[1])
        self._counted = (cache, hits, misses)

    def _require_ready(self) -> None:
        if self.state is not State.READY:
            raise NotReady(f"the service is {self.state.value}")

    def _admit(self, queries: int) -> None:
        """Count queries in; a request larger than the whole queue is admitted when it is alone."""
        if self._waiting and self._waiting + queries > self._settings.queue_queries:
            raise Overloaded(f"{self._waiting} queries are waiting", retry_after=1)
        self._waiting += queries

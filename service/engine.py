"""The engine owns bundle, memory, log and threads: admission, answering, writing, readiness."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from enum import Enum
from importlib.metadata import version as library_version
from pathlib import Path
from time import monotonic, perf_counter
from typing import Any

import numpy as np

from service.core import manifest
from service.core.bundle import Bundle, open_bundle
from service.core.encoder import OnnxEncoder
from service.core.errors import DeadlineExceeded, NotReady, Overloaded
from service.core.events import replayed
from service.core.index.faiss_hnsw import search_in_one_thread
from service.core.label_log import LabelLog
from service.core.memory import KnowledgeMemory, MemoryLimits
from service.core.predictor import Predictor
from service.core.query_cache import QueryCache
from service.core.types import Answer, NewLabel, PredictOptions
from service.core.view import View
from service.publication import Publication
from service.settings import EngineSettings
from service.telemetry import Telemetry
from service.writer import Writer, Written

TASK_QUERIES = 8  # queries that one task answers, so that a large request cannot hold a thread long
WARM_UP_SEARCHES = 64  # a thread, spread over all keys
_REPLAY_EVENTS = 1000

log = logging.getLogger("keymatch")


class State(Enum):
    """Where the engine stands; only `READY` answers."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"


class Engine:
    """One bundle, one state folder, as many answering threads as cores, one writing thread.

    `open` and `close` block; `predict` and `put_labels` belong to the event loop.
    """

    def __init__(
        self, bundle: Path, state: Path, *, settings: EngineSettings, telemetry: Telemetry
    ) -> None:
        """Remember where things are; nothing is opened yet."""
        self._bundle_folder, self._state_folder = bundle, state
        self._settings, self._telemetry = settings, telemetry
        self.state = State.STARTING
        self.failure: BaseException | None = None
        self._log: LabelLog | None = None
        self._waiting = 0  # queries; touched on the event loop only
        self._published = Publication()
        self._counted = (0, 0)  # cache hits and misses that telemetry knows

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
        self._bundle: Bundle = open_bundle(self._bundle_folder)
        facts = self._bundle.manifest
        log.info("bundle verified", extra={"bundle": facts.name, "rows": len(self._bundle.keys)})
        self._encoder = OnnxEncoder(self._bundle.folder, facts.encoder)
        self._cache = QueryCache(self._settings.cached_queries)
        self._predictor = Predictor(self._encoder, tau=facts.predictor.tau, cache=self._cache)
        self._memory = KnowledgeMemory(
            self._bundle, MemoryLimits(live_rows=self._settings.live_rows)
        )
        self._log = LabelLog(self._state_folder)
        self._replay(self._log)
        self._pool = ThreadPoolExecutor(
            self._settings.threads, "answer", initializer=search_in_one_thread
        )
        self._warm_up()
        self._writer = Writer(
            log=self._log,
            memory=self._memory,
            encoder=self._encoder,
            telemetry=self._telemetry,
            queue_labels=self._settings.queue_labels,
            published=self._published.announce,
        )
        self._telemetry.build_info.labels(library_version("keymatch"), facts.name).set(1)

    def _replay(self, label_log: LabelLog) -> None:
        changes = []
        for event in label_log.read():
            changes.append(replayed(event, self._encoder))
            if len(changes) == _REPLAY_EVENTS:
                self._memory.apply(changes)
                changes = []
        self._memory.apply(changes)
        log.info("log replayed", extra={"version": self._memory.view.version})

    def _warm_up(self) -> None:
        """Answer on every thread: first calls allocate, first searches fault pages in, and a
        broken model shows here."""
        barrier = threading.Barrier(self._settings.threads)
        view, options = self._memory.view, self._with_defaults(PredictOptions(), {})
        spread = self._bundle.keys[:: max(1, len(self._bundle.keys) // WARM_UP_SEARCHES)]

        def answer() -> None:
            barrier.wait()
            self._predictor.predict(view, ["warm-up"], options)
            view.retrieve(spread.astype(np.float32), depth=options.depth)

        for future in [self._pool.submit(answer) for _ in range(self._settings.threads)]:
            future.result()

    def close(self) -> None:
        """Finish what was admitted and let go of everything."""
        was, self.state = self.state, State.DRAINING
        if was is not State.READY:
            return
        self._writer.close()
        self._pool.shutdown()
        if self._log is not None:
            self._log.close()

    # Reading -----------------------------------------------------------------------------

    @property
    def view(self) -> View:
        """The newest view; raises `NotReady` unless the engine answers."""
        self._require_ready()
        return self._memory.view

    @property
    def bundle_name(self) -> str:
        """The name of the served bundle."""
        self._require_ready()
        return self._bundle.manifest.name

    def options(self, base: PredictOptions, **given: Any) -> PredictOptions:
        """Options with the bundle's defaults for lambda and b where the request gave none."""
        self._require_ready()
        return self._with_defaults(base, given)

    def _with_defaults(self, base: PredictOptions, given: Mapping[str, Any]) -> PredictOptions:
        facts = self._bundle.manifest.predictor
        defaults = {"memorization": facts.memorization, "depth": facts.depth}
        chosen = {name: value for name, value in given.items() if value is not None}
        return replace(base, **{**defaults, **chosen})

    async def predict(
        self,
        queries: Sequence[str],
        options: PredictOptions,
        *,
        deadline: float,
        min_version: int = 0,
    ) -> Answer:
        """Answer queries from one view of at least `min_version`.

        `deadline` is a time of `monotonic`. Raises `NotReady`, `Overloaded` or
        `DeadlineExceeded`.
        """
        self._require_ready()
        self._admit(len(queries))
        try:
            async with asyncio.timeout(deadline - monotonic()):
                await self._published.wait(lambda: self._memory.view.version >= min_version)
                return await self._answer(queries, options, deadline)
        except TimeoutError as error:
            raise DeadlineExceeded("the deadline passed before the answer was there") from error
        finally:
            self._waiting -= len(queries)

    async def _answer(
        self, queries: Sequence[str], options: PredictOptions, deadline: float
    ) -> Answer:
        view, loop = self._memory.view, asyncio.get_running_loop()
        tasks = [
            loop.run_in_executor(
                self._pool,
                self._task,
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
        answer = self._predictor.predict(view, queries, options)
        answer = replace(answer, seconds={"queue": waited, **answer.seconds})
        self._telemetry.observe_stages(answer.seconds)
        self._telemetry.batch_size.labels("predict").observe(len(queries))
        return answer

    # Writing -----------------------------------------------------------------------------

    async def put_labels(self, labels: Sequence[NewLabel]) -> Written:
        """Create or replace labels; returns once they are synced to the log and visible.

        Raises `NotReady`, `Overloaded`, `MemoryFull` or `LogError`; then nothing was written.
        """
        self._require_ready()
        # Shielded: a client that goes away must not cancel what may already be on the disk.
        return await asyncio.shield(asyncio.wrap_future(self._writer.submit(labels)))

    # Being watched -----------------------------------------------------------------------

    def ready(self) -> bool:
        """Whether queries are answered and writes can succeed: checks the parts, not the clock."""
        return self.state is State.READY and self._writer.alive

    def describe(self) -> dict[str, Any]:
        """What is served, for GET /info."""
        view = self.view
        return {
            "version": view.version,
            "bundle": manifest.as_document(self._bundle.manifest),
            "memory": {
                "base_rows": view.base_rows,
                "live_rows": view.live_rows,
                "dead_rows": view.dead_rows,
                "labels": view.labels.columns - len(view.labels.deleted),
                "live_labels": len(view.labels.live),
            },
        }

    def measure(self) -> None:
        """Bring the gauges and the cache's counters up to date, for GET /metrics."""
        if self.state is not State.READY:
            return
        view, telemetry = self._memory.view, self._telemetry
        rows = {
            "base": view.base_rows,
            "sealed": 0,
            "live": view.live_rows,
            "tombstone": view.dead_rows,
        }
        for kind, count in rows.items():
            telemetry.memory_rows.labels(kind).set(count)
        telemetry.memory_version.set(view.version)
        telemetry.log_lag_events.set(self._writer.lag)
        telemetry.queue_depth.set(self._waiting)
        hits, misses = self._cache.hits, self._cache.misses
        telemetry.cache_hits.inc(hits - self._counted[0])
        telemetry.cache_misses.inc(misses - self._counted[1])
        self._counted = (hits, misses)

    def _require_ready(self) -> None:
        if self.state is not State.READY:
            raise NotReady(f"the service is {self.state.value}")

    def _admit(self, queries: int) -> None:
        """Count queries in; a request larger than the whole queue is admitted when it is alone."""
        if self._waiting and self._waiting + queries > self._settings.queue_queries:
            raise Overloaded(f"{self._waiting} queries are waiting", retry_after=1)
        self._waiting += queries

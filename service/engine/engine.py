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
from contextlib import suppress
from dataclasses import asdict
from enum import Enum
from functools import partial
from importlib.metadata import version as library_version
from pathlib import Path
from time import perf_counter
from typing import Any

from service.command_line import DEFAULT_CACHE
from service.core.bundle import manifest
from service.core.errors import NotReady, Overloaded
from service.core.label_log import LabelLog, open_log
from service.core.memory.shards import Shards
from service.core.memory.view import View
from service.core.prediction.predictor import QueryCache
from service.core.processes.quick_switches import QuickSwitches
from service.core.tenant import Tenant
from service.core.types import Answer, NewLabel
from service.engine.bundle_admin import BundleAdmin
from service.engine.bundle_directory import BundleDirectory
from service.engine.device import open_device, segment_source
from service.engine.encoder_pool import LabelEncoding
from service.engine.loaded_bundle import (
    LoadedBundle,
    OpenShards,
    load_bundle,
    require_same_builder,
)
from service.engine.reading.read_path import ReadPath
from service.engine.reading.task_queue import Arrivals, QueryRequest, TaskQueue
from service.engine.sealer import open_sealers
from service.engine.writing.label_merge import LabelMerge
from service.engine.writing.operations import (
    LabelChanged,
    MergeLabels,
    Operation,
    PostLabels,
    RequestKey,
    Written,
)
from service.engine.writing.write_path import ProcessorShare, WritePath
from service.engine.writing.writer import Writer
from service.settings import EngineSettings, Limits
from service.telemetry import ITEM_KINDS, Telemetry

MERGE_ATTEMPTS = 10  # each fails only if another write to the same label has succeeded
FEW_MERGES = 16  # that the event loop prepares itself, in a fraction of a millisecond

log = logging.getLogger("keymatch")


class State(Enum):
    """The states of an engine; only `READY` answers."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"


class Engine:
    """One bundle, one label log, one answering thread per core and one writing thread.

    `open` and `close` block; everything else belongs to the event loop.
    """

    def __init__(
        self,
        bundle: Path,
        state: Path | str,
        *,
        bundles: Path | str | None = None,
        cache: Path = DEFAULT_CACHE,
        settings: EngineSettings,
        telemetry: Telemetry,
        open_shards: OpenShards | None = None,
    ) -> None:
        """Prepare an engine, without opening anything. With `open_shards`, it is a front.

        `state` is a folder or a PostgreSQL URL. A reload opens bundles by name from `bundles`, a
        folder or the URL of an object store, by default the folder that contains `bundle`. `cache`
        keeps copies of bundles from a URL.
        """
        self._directory = BundleDirectory.of(bundle, bundles, cache)
        self._state_place = state
        self._settings, self._telemetry = settings, telemetry
        self._open_shards = open_shards
        self._queue = TaskQueue(settings)
        self.arrivals = Arrivals(self._queue)
        self.switches = QuickSwitches()
        self.state = State.STARTING
        self.failure: BaseException | None = None
        self._log: LabelLog | None = None
        self._kill_children: list[Callable[[], None]] = []  # one function per started component
        self._cache: QueryCache | None = None  # the cache that was last measured
        self._hits = self._misses = 0  # of that cache, as reported so far

    def open(self) -> None:
        """Verify the bundle, replay the log and answer a warm-up query; then the engine is ready.

        On error, stores the exception in `failure` and raises it.
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
        manifest.read(self._directory.started_with)  # a broken bundle must not create a log
        self._device = open_device(settings.device)
        self._log = open_log(self._state_place)
        self._loaded = load_bundle(
            self._directory.current(self._log),
            self._log,
            settings,
            device=self._device,
            trial=partial(require_same_builder, label_log=self._log),
            open_shards=self._open_shards,
        )
        self._encoding = LabelEncoding(
            self._loaded,
            processes=settings.threads,
            share=settings.write_share,
            patience=settings.write_deadline_ms / 1000,
        )
        self._kill_children.append(self._encoding.kill)
        self._reads = ReadPath(
            self._queue,
            telemetry,
            loaded=lambda: self._loaded,
            settings=settings,
            switches=self.switches,
        )
        self._loaded.warm_up(
            self._queue.send, threads=settings.threads, seconds=settings.warm_up_seconds
        )
        self._encoding.wait_until_warm()
        self._open_writer(self._log)
        self._kill_children += [*(s.interrupt for s in self._sealers), self._admin.close]
        self._writer.rehearse().result()
        self._log.watch(self._writer.wake)
        self._publish(self._loaded)

    def _open_writer(self, label_log: LabelLog) -> None:
        """Start the writer's thread, and the components that submit work to it."""
        settings, telemetry = self._settings, self._telemetry
        patience = settings.write_deadline_ms / 1000
        share = ProcessorShare(settings.write_share, cores=settings.threads)
        self._writer = Writer(
            log=label_log,
            loaded=self._loaded,
            telemetry=telemetry,
            queue_labels=settings.queue_labels,
            queue_delay=patience / 2,
            published=self._publish,
            reload_requested=lambda request: self._admin.follow(request),
            encoding_took=share.spend,
            check_pause=settings.log_check_minutes * 60,
        )
        self._writes = WritePath(
            self._encoding,
            submit=self._writer.submit,
            loaded=lambda: self._loaded,
            share=share,
            queue_labels=settings.queue_labels,
            patience=patience,
        )
        self._sealers = open_sealers(
            lambda folder: segment_source(self._device, label_log, settings, folder=folder),
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
            submit=self._queue.send,
            settings=settings,
            device=self._device,
            telemetry=telemetry,
            open_shards=self._open_shards,
        )

    def _publish(self, loaded: LoadedBundle) -> None:
        """Announce a new view; the writer's thread calls this for each one."""
        if loaded is not self._loaded or self.state is State.STARTING:
            self._telemetry.serves(
                version=library_version("keymatch"), bundle=loaded.bundle.manifest.name
            )
        self._loaded = loaded
        self._reads.waiters.notify()
        if not loaded.memory.view.built:
            for sealer in self._sealers:
                sealer.wake()

    def close(self) -> None:
        """Finish admitted requests, then stop all threads and child processes."""
        before, self.state = self.state, State.DRAINING
        if before is not State.READY:
            return
        self._admin.close()
        self._encoding.close()
        for sealer in self._sealers:
            sealer.close()
        self._writer.close()
        self._reads.close()
        if self._log is not None:
            self._log.close()

    def kill_children(self) -> None:
        """Kill all child processes if closing takes too long. Any thread may call this."""
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

    async def predict(self, request: QueryRequest) -> tuple[str, Answer]:
        """Answer a request; returns the bundle's name and the answer.

        Raises `NotReady`, or as `ReadPath.predict`.
        """
        self._require_ready()
        return await self._reads.predict(request)

    async def write(self, operation: Operation, *, request: RequestKey | None = None) -> Written:
        """Carry out an operation; returns once it is synced to the log and visible.

        Raises `NotReady`, `Overloaded`, `DeadlineExceeded`, `MemoryFull`, `KeyReused`, `LogError`
        or what the operation itself raises. Nothing was written then, except that after a
        `LogError` all may have been.
        """
        self._require_ready()
        return await self._writes.write(operation, request=request)

    async def put_labels(
        self, labels: Sequence[NewLabel], *, tenant: Tenant | None = None
    ) -> Written:
        """Create or replace a tenant's labels; raises as `write`."""
        return await self.write(PostLabels(items=tuple(labels), tenant=tenant))

    async def merge_labels(
        self,
        merges: Sequence[LabelMerge],
        *,
        limits: Limits,
        tenant: Tenant | None = None,
        request: RequestKey | None = None,
    ) -> Written:
        """Merge into the newest states of a tenant's labels, all or none.

        Raises as `write` and `MergeLabels.plan`, and `Overloaded` if other writes changed the texts
        of a label before each attempt.
        """
        make = partial(MergeLabels.of, merges, limits=limits, tenant=tenant)
        for _ in range(MERGE_ATTEMPTS):
            with suppress(LabelChanged):
                table = self.view.labels
                few = len(merges) <= FEW_MERGES
                operation = make(table) if few else await asyncio.to_thread(make, table)
                return await self.write(operation, request=request)
        raise Overloaded("other writes change this label all the time", retry_after=1)

    async def snapshot(self, name: str | None) -> tuple[str, int]:
        """Write a snapshot; returns its name and the version it holds.

        Raises `NotReady`, or as `BundleAdmin.snapshot`.
        """
        self._require_ready()
        return await asyncio.to_thread(self._admin.snapshot, self._loaded, name)

    async def cancel_snapshot(self) -> str | None:
        """Cancel the running snapshot; returns its name, or None if there is none."""
        self._require_ready()
        return await asyncio.to_thread(self._admin.cancel_snapshot)

    async def reload(
        self, name: str, *, other_data: bool = False
    ) -> tuple[LoadedBundle, LoadedBundle]:
        """Switch to another bundle; returns the former and the new one.

        Raises `NotReady`, or as `BundleAdmin.reload`.
        """
        before = self.loaded
        return before, await asyncio.to_thread(self._admin.reload, name, other_data=other_data)

    # Status ------------------------------------------------------------------------------

    def ready(self) -> bool:
        """Whether queries are answered and writes can still succeed."""
        if self.state is not State.READY or self._log is None:
            return False
        # If the log's file was replaced, a restart would not find new writes.
        return self._writer.alive and self._log.in_place

    def broken(self) -> bool:
        """Whether only a restart can help."""
        return self.state is State.FAILED or (self.state is State.READY and not self._writer.alive)

    def writes(self) -> str:
        """Return how a ready engine takes writes: `accepted`, `limited` (few texts), `failing`."""
        if self._writer.health.cause:
            return "failing"
        return "accepted" if self._encoding.warm else "limited"

    def describe(self, tenant: Tenant | None = None) -> dict[str, Any]:
        """Describe what is served, for GET /info; raises `NotReady`.

        A tenant learns what is its own, and the settings of the bundle.
        """
        memory, progress = self.loaded.memory, self._admin.snapshot_progress()
        view = memory.of_tenant(memory.view, tenant)
        rows, facts = _rows(view), view.bundle.manifest
        served = {
            "version": view.version,
            "device": "cpu" if view.bundle.device is None else view.bundle.device.name,
            "score_kind": facts.score_kind,
            "novel_labels": "text" if view.bundle.novel is None else "irene",
        }
        if tenant is not None:
            own = {"labels": len(view.labels), "rules": view.rules.count}
            return {**served, "bundle": {"name": facts.name}, "memory": own, "snapshot": None}
        return {
            **served,
            "bundle": manifest.as_document(facts),
            "memory": {
                "base_rows": rows["base"],
                "sealed_rows": rows["sealed"],
                "live_rows": rows["live"],
                "dead_rows": rows["tombstone"],
                "segments": len(view.parts) + 1,
                "unsealed_segments": sum(1 for _ in view.all_unsealed()),
                "labels": len(view.labels),
                "live_labels": len(view.labels.live),
                "rules": len(view.rules),
                "items": 0 if view.items is None else len(view.items),
                "live_bytes": view.live_bytes,
            },
            "snapshot": None if progress is None else progress.document(),
            **_described(memory.shards),
        }

    @property
    def divided(self) -> bool:
        """Whether the memory is divided into shards."""
        return self._open_shards is not None

    def shards(self) -> dict[str, Any]:
        """Describe the shards of a divided memory, for GET /health/ready."""
        shards = self.loaded.memory.shards
        assert shards is not None
        status = shards.status()
        answering = sum(one is not None for one in status)
        return {
            "answering": answering,
            "of": len(status),
            "replicas": shards.replicas,
            "attended": shards.attended,
        }

    def measure(self) -> None:
        """Bring the gauges and the cache's counters up to date, for GET /metrics."""
        if self.state is not State.READY:
            return
        telemetry, loaded = self._telemetry, self._loaded
        view = loaded.memory.view
        for kind, count in _rows(view).items():
            telemetry.memory_rows.labels(kind).set(count)
        for kind, count in _items(view).items():
            telemetry.items.labels(kind).set(count)
        telemetry.live_bytes.set(view.live_bytes)
        telemetry.memory_version.set(view.version)
        telemetry.log_lag_events.set(self._writer.lag)
        telemetry.log_damaged.set(bool(self._writer.health.damage))
        telemetry.queue_depth.set(self._queue.depth)
        telemetry.version_waiters.set(len(self._reads.waiters))
        if loaded.cache is not self._cache:  # a reload brings a new cache
            self._cache, self._hits, self._misses = loaded.cache, 0, 0
        hits, misses = loaded.cache.hits, loaded.cache.misses
        telemetry.cache_hits.inc(hits - self._hits)
        telemetry.cache_misses.inc(misses - self._misses)
        self._hits, self._misses = hits, misses

    def _require_ready(self) -> None:
        if self.state is not State.READY:
            raise NotReady(f"the service is {self.state.value}")


def _described(shards: Shards | None) -> dict[str, Any]:
    """Return what each shard holds; nothing if the memory is not divided."""
    if shards is None:
        return {}
    return {"shards": [status and asdict(status) for status in shards.status()]}


def _rows(view: View) -> dict[str, int]:
    return {
        "base": view.base_rows,
        "sealed": view.sealed_rows,
        "live": view.live_rows - view.sealed_rows,
        "tombstone": view.dead_rows,
    }


def _items(view: View) -> dict[str, int]:
    """Count stored items by kind; all are 0 without an item memory."""
    items = view.items
    if items is None:
        return dict.fromkeys(ITEM_KINDS, 0)
    sealed = items.posted.sealed_count
    return {
        "base": items.base.count,
        "sealed": sealed,
        "live": items.posted.count - sealed,
        "tombstone": items.dead,
    }

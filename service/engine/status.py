"""What the engine says about itself: its state, GET /info and the gauges of GET /metrics."""

from __future__ import annotations

from enum import Enum
from typing import Any

from service.core.bundle import manifest
from service.core.memory.view import View
from service.core.prediction.query_cache import QueryCache
from service.engine.loaded_bundle import LoadedBundle
from service.engine.snapshot_file import SnapshotProgress, described
from service.telemetry import ITEM_KINDS, Telemetry


class State(Enum):
    """The states of an engine; only `READY` answers."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"


def describe(view: View, snapshot: SnapshotProgress | None) -> dict[str, Any]:
    """What is served, for GET /info."""
    return {
        "version": view.version,
        "device": "cpu" if view.bundle.device is None else view.bundle.device.name,
        "bundle": manifest.as_document(view.bundle.manifest),
        "novel_labels": "text" if view.bundle.novel is None else "irene",
        "memory": {
            "base_rows": view.base_rows,
            "sealed_rows": view.sealed_rows,
            "live_rows": view.live_rows - view.sealed_rows,
            "dead_rows": view.dead_rows,
            "segments": sum(1 for part in view.parts) + 1,
            "unsealed_segments": sum(1 for _ in view.all_unsealed()),
            "labels": len(view.labels),
            "live_labels": len(view.labels.live),
            "items": 0 if view.items is None else len(view.items),
            "live_bytes": view.live_bytes,
        },
        "snapshot": described(snapshot),
    }


def _items(view: View) -> dict[str, int]:
    """Stored items by kind; all are 0 without an item memory."""
    items = view.items
    if items is None:
        return dict.fromkeys(ITEM_KINDS, 0)
    sealed = items.posted.segments.stop
    return {
        "base": items.base.count,
        "sealed": sealed,
        "live": items.posted.count - sealed,
        "tombstone": items.dead,
    }


class Gauges:
    """Brings the gauges and the query cache's counters up to date."""

    def __init__(self, telemetry: Telemetry) -> None:
        """Write to the metrics of this process."""
        self._telemetry = telemetry
        self._cache: QueryCache | None = None  # the one that was counted last
        self._hits = self._misses = 0  # of that cache, as counted so far

    def update(
        self,
        loaded: LoadedBundle,
        *,
        lag: int,
        log_damaged: bool,
        waiting_queries: int,
        version_waiters: int,
    ) -> None:
        """Measure the memory, the lag of the log in events and its state, and who waits."""
        telemetry, view = self._telemetry, loaded.memory.view
        rows = {
            "base": view.base_rows,
            "sealed": view.sealed_rows,
            "live": view.live_rows - view.sealed_rows,
            "tombstone": view.dead_rows,
        }
        for kind, count in rows.items():
            telemetry.memory_rows.labels(kind).set(count)
        for kind, count in _items(view).items():
            telemetry.items.labels(kind).set(count)
        telemetry.live_bytes.set(view.live_bytes)
        telemetry.memory_version.set(view.version)
        telemetry.log_lag_events.set(lag)
        telemetry.log_damaged.set(log_damaged)
        telemetry.queue_depth.set(waiting_queries)
        telemetry.version_waiters.set(version_waiters)
        self._count(loaded.cache)

    def _count(self, cache: QueryCache) -> None:
        """Add what the cache has counted since the last time; a reloaded bundle has a new one."""
        if cache is not self._cache:
            self._cache, self._hits, self._misses = cache, 0, 0
        hits, misses = cache.hits, cache.misses
        self._telemetry.cache_hits.inc(hits - self._hits)
        self._telemetry.cache_misses.inc(misses - self._misses)
        self._hits, self._misses = hits, misses

"""Every metric that the service exports, by name. README lists the same; a test compares them.

Several workers share a folder: each counts in files of its own there, and the one that is scraped
answers for all. Counters and histograms add up, those of workers that ended included. A gauge is
merged over the workers that live:

| gauge            | merged  | because                                                           |
|------------------|---------|-------------------------------------------------------------------|
| `queue_depth`    | sum     | each worker has a queue of its own                                |
| `memory_rows`    | newest  | all hold the same memory; rows of one moment fit each other       |
| `memory_version` | least   | what every worker already answers with                            |
| `log_lag_events` | most    | the worker that is furthest behind                                |
| `build_info`     | most    | 1 for what any worker serves, 0 for what all have left            |

prometheus_client chooses between memory and files when it is imported, by the environment variable
PROMETHEUS_MULTIPROC_DIR; it must name the folder before a worker's process begins.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

# Geometric, from 50 microseconds to 6.5 seconds.
SECONDS_BUCKETS = tuple(50e-6 * 2**step for step in range(18))
# From a tenth of a second to 14 minutes: a segment's graph is built once, over many rows.
SEAL_SECONDS_BUCKETS = tuple(0.1 * 2**step for step in range(14))
BATCH_BUCKETS = tuple(float(2**step) for step in range(11))
STAGES = ("queue", "tokenize", "encode", "retrieve", "score", "log_commit", "publish")
ROW_KINDS = ("base", "sealed", "live", "tombstone")
REJECTIONS = ("queue_full", "deadline", "not_ready", "memory_full", "refused", "invalid")
RELOADS = ("ok", "failed")

_Merged = Literal["livesum", "livemin", "livemax", "livemostrecent"]


class Telemetry:
    """The metrics of one process; label values come from fixed sets only."""

    def __init__(self, shared: Path | None = None) -> None:
        """`shared` is the folder in which several workers count, None for a process alone."""
        self.shared = shared
        self.registry = CollectorRegistry()
        self.requests = self._counter("requests_total", "Answered requests", "route", "status")
        self.request_seconds = self._histogram("request_seconds", "Whole request", "route")
        self.stage_seconds = self._histogram("stage_seconds", "One stage of a request", "stage")
        self.queue_depth = self._gauge("queue_depth", "Queries waiting or running", "livesum")
        self.batch_size = Histogram(
            "keymatch_batch_size",
            "Queries answered by one task, and labels written by one commit",
            ("kind",),
            buckets=BATCH_BUCKETS,
            registry=self.registry,
        )
        self.seal_seconds = Histogram(
            "keymatch_seal_seconds",
            "Building one sealed segment, seconds",
            buckets=SEAL_SECONDS_BUCKETS,
            registry=self.registry,
        )
        self.reloads = self._counter("reloads_total", "Bundles exchanged while serving", "outcome")
        self.memory_rows = self._gauge(
            "memory_rows", "Rows of the knowledge memory", "livemostrecent", "kind"
        )
        self.memory_version = self._gauge(
            "memory_version", "Newest event that answers reflect", "livemin"
        )
        self.log_lag_events = self._gauge(
            "log_lag_events", "Logged events not yet in the memory", "livemax"
        )
        self.cache_hits = self._counter("encode_cache_hits_total", "Queries found encoded")
        self.cache_misses = self._counter("encode_cache_misses_total", "Queries encoded")
        self.rejected = self._counter("rejected_total", "Requests not served", "reason")
        self.build_info = self._gauge(
            "build_info", "1 for what is served", "livemax", "version", "bundle"
        )
        self._served: tuple[str, str] | None = None
        for stage in STAGES:
            self.stage_seconds.labels(stage)
        for reason in REJECTIONS:
            self.rejected.labels(reason)
        for outcome in RELOADS:
            self.reloads.labels(outcome)
        if shared is not None:
            # A worker that still opens answers nothing: it must not stand for the least version.
            self.memory_version.set(math.inf)

    def serves(self, *, version: str, bundle: str) -> None:
        """Say what is served from now on."""
        # Files cannot lose a series again, so what was served before falls to 0 instead.
        if self._served is not None:
            self.build_info.labels(*self._served).set(0)
        self._served = (version, bundle)
        self.build_info.labels(*self._served).set(1)

    def observe_stages(self, seconds: Mapping[str, float]) -> None:
        """Count the seconds of each stage once."""
        for stage, value in seconds.items():
            self.stage_seconds.labels(stage).observe(value)

    def render(self) -> bytes:
        """The text exposition format, of all workers."""
        if self.shared is None:
            return generate_latest(self.registry)
        merged = CollectorRegistry()
        MultiProcessCollector(merged, path=str(self.shared))  # type: ignore[no-untyped-call]
        return generate_latest(merged)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"keymatch_{name}", text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, merged: _Merged, *labels: str) -> Gauge:
        return Gauge(
            f"keymatch_{name}", text, labels, registry=self.registry, multiprocess_mode=merged
        )

    def _histogram(self, name: str, text: str, *labels: str) -> Histogram:
        return Histogram(
            f"keymatch_{name}",
            f"{text}, seconds",
            labels,
            buckets=SECONDS_BUCKETS,
            registry=self.registry,
        )


def forget_ended(shared: Path, running: Collection[int]) -> None:
    """Drop the gauges of processes that run no more; what they counted stays."""
    for path in shared.glob("gauge_live*_*.db"):
        process = int(path.stem.rpartition("_")[2])
        if process not in running:
            mark_process_dead(process, str(shared))  # type: ignore[no-untyped-call]

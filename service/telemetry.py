"""Every metric that the service exports. service/README.md lists the same; a test compares them.

Several workers share a folder: each writes files of its own there, and the worker that is scraped
answers for all. Counters and histograms add up, those of workers that ended included. A gauge is
merged over the workers that are running:

| gauge             | merged by    | because                                                     |
|-------------------|--------------|-------------------------------------------------------------|
| `queue_depth`     | sum          | each worker has its own queue                               |
| `version_waiters` | sum          | each worker has its own waiters                             |
| `held_bytes`      | sum          | each worker holds its own requests                          |
| `connections`     | sum          | each worker has its own connections                         |
| `memory_rows`     | newest value | all hold the same memory; rows of one moment fit each other |
| `items`           | newest value | all hold the same items; those of one moment fit each other |
| `live_bytes`      | maximum      | all hold the same memory, one of them may be behind         |
| `limit`           | maximum      | all have the same settings                                  |
| `memory_version`  | minimum      | every worker already answers with this version              |
| `log_lag_events`  | maximum      | the worker that is furthest behind                          |
| `log_damaged`     | maximum      | all check the same log                                      |
| `build_info`      | maximum      | 1 for what any worker serves, 0 for what none serves now    |

prometheus_client chooses between memory and files when it is imported, by the environment variable
PROMETHEUS_MULTIPROC_DIR; it must name the folder before a worker's process begins.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.multiprocess import mark_process_dead

from service.exposition import render

# Geometric, from 50 microseconds to 6.5 seconds.
SECONDS_BUCKETS = tuple(50e-6 * 2**step for step in range(18))
# From a tenth of a second to 14 minutes: a segment's graph is built over many rows at once.
SEAL_SECONDS_BUCKETS = tuple(0.1 * 2**step for step in range(14))
BATCH_BUCKETS = tuple(float(2**step) for step in range(11))
READING_STAGES = ("queue", "tokenize", "encode", "fuse", "retrieve", "score", "rerank")
STAGES = (*READING_STAGES, "log_commit", "publish")
ROW_KINDS = ("base", "sealed", "live", "tombstone")
ITEM_KINDS = ("base", "sealed", "live", "tombstone")
REJECTIONS = (
    "queue_full",
    "overloaded",
    "held_bytes",
    "answer_bytes",
    "deadline",
    "disconnected",
    "not_ready",
    "memory_full",
    "slow",
    "connections",
    "refused",
    "invalid",
)
# Settings that a gauge comes near to.
LIMITS = (
    "queue_queries",
    "version_waiters",
    "live_rows",
    "live_bytes",
    "held_bytes",
    "answer_bytes",
    "stream_answer_bytes",
    "metadata_bytes",
    "connections",
    "memory_bytes",
)
RELOADS = ("ok", "failed")

Metric = TypeVar("Metric", bound=Counter | Gauge | Histogram)


class Declared(Generic[Metric]):
    """A metric in the body of `Telemetry`; each instance creates its own in its registry."""

    def __init__(
        self,
        kind: Callable[..., Metric],
        name: str,
        text: str,
        *labels: str,
        values: Sequence[str] = (),
        **options: Any,
    ) -> None:
        """`labels` name the metric's labels; series of `values` are there from the start, at 0."""
        self._kind, self._name, self._text = kind, name, text
        self._labels, self._values, self._options = labels, values, options

    def create(self, registry: CollectorRegistry) -> Metric:
        """Register the metric."""
        name = f"keymatch_{self._name}"
        metric = self._kind(name, self._text, self._labels, registry=registry, **self._options)
        for value in self._values:
            metric.labels(value)
        return metric

    def __get__(self, telemetry: Telemetry, owner: type[Telemetry]) -> Metric:
        """Only for type checkers: an instance's own attribute stands before this one."""
        raise AttributeError(f"the metric {self._name} belongs to an instance of Telemetry")


class Telemetry:
    """The metrics of one process; label values come from fixed sets only."""

    requests = Declared(Counter, "requests_total", "Answered requests", "route", "status")
    request_seconds = Declared(
        Histogram, "request_seconds", "Whole request, seconds", "route", buckets=SECONDS_BUCKETS
    )
    stage_seconds = Declared(
        Histogram,
        "stage_seconds",
        "One stage of a request, seconds",
        "stage",
        values=STAGES,
        buckets=SECONDS_BUCKETS,
    )
    queue_depth = Declared(
        Gauge, "queue_depth", "Queries waiting or running", multiprocess_mode="livesum"
    )
    version_waiters = Declared(
        Gauge,
        "version_waiters",
        "Requests waiting for their min_version",
        multiprocess_mode="livesum",
    )
    held_bytes = Declared(
        Gauge,
        "held_bytes",
        "Bytes of large bodies, streams and unread answers",
        multiprocess_mode="livesum",
    )
    connections = Declared(
        Gauge, "connections", "Open connections of clients", multiprocess_mode="livesum"
    )
    limit = Declared(
        Gauge,
        "limit",
        "What a setting allows each worker",
        "setting",
        values=LIMITS,
        multiprocess_mode="livemax",
    )
    batch_size = Declared(
        Histogram,
        "batch_size",
        "Queries that a thread took together, and labels written by one commit",
        "kind",
        buckets=BATCH_BUCKETS,
    )
    seal_seconds = Declared(
        Histogram,
        "seal_seconds",
        "Building one sealed segment, seconds",
        buckets=SEAL_SECONDS_BUCKETS,
    )
    reloads = Declared(
        Counter, "reloads_total", "Bundles reloaded while serving", "outcome", values=RELOADS
    )
    memory_rows = Declared(
        Gauge,
        "memory_rows",
        "Rows of the knowledge memory",
        "kind",
        multiprocess_mode="livemostrecent",
    )
    items = Declared(
        Gauge,
        "items",
        "Items of the item memory",
        "kind",
        multiprocess_mode="livemostrecent",
    )
    live_bytes = Declared(
        Gauge,
        "live_bytes",
        "Memory of what was learned since the bundle, bytes, estimated",
        multiprocess_mode="livemax",
    )
    memory_version = Declared(
        Gauge,
        "memory_version",
        "Newest event that answers reflect",
        multiprocess_mode="livemin",
    )
    log_lag_events = Declared(
        Gauge,
        "log_lag_events",
        "Logged events not yet in the memory",
        multiprocess_mode="livemax",
    )
    log_damaged = Declared(
        Gauge,
        "log_damaged",
        "1 while a walk over the label log meets damage",
        multiprocess_mode="livemax",
    )
    cache_hits = Declared(
        Counter, "encode_cache_hits_total", "Queries whose vector was in the cache"
    )
    cache_misses = Declared(Counter, "encode_cache_misses_total", "Queries encoded")
    rejected = Declared(
        Counter, "rejected_total", "Requests not served", "reason", values=REJECTIONS
    )
    build_info = Declared(
        Gauge,
        "build_info",
        "1 for what is served",
        "version",
        "bundle",
        multiprocess_mode="livemax",
    )

    def __init__(self, shared: Path | None = None) -> None:
        """`shared` is the folder that several workers write to, None for a single worker."""
        self.shared = shared
        self.registry = CollectorRegistry()
        for attribute, declared in vars(Telemetry).items():
            if isinstance(declared, Declared):
                setattr(self, attribute, declared.create(self.registry))
        self._served: tuple[str, str] | None = None
        # Looked up once: `labels` validates its values anew at each call.
        self._stages = {stage: self.stage_seconds.labels(stage) for stage in STAGES}
        self._answered: dict[tuple[str, int], tuple[Counter, Histogram]] = {}
        if shared is not None:
            # A worker that still opens answers nothing: its 0 must not become the minimum.
            self.memory_version.set(math.inf)

    def serves(self, *, version: str, bundle: str) -> None:
        """Set `build_info` to what is served from now on."""
        # A series cannot be removed from a file, so the one served before falls to 0 instead.
        if self._served is not None:
            self.build_info.labels(*self._served).set(0)
        self._served = (version, bundle)
        self.build_info.labels(*self._served).set(1)

    def allows(self, limits: Mapping[str, int]) -> None:
        """Show what settings allow: a value for each name in `LIMITS`."""
        for setting in LIMITS:
            self.limit.labels(setting).set(limits[setting])

    def observe_stages(self, seconds: Mapping[str, float]) -> None:
        """Observe the seconds of each stage."""
        for stage, value in seconds.items():
            self._stages[stage].observe(value)

    def observe_request(self, route: str, status: int, seconds: float) -> None:
        """Count one answered request, and observe how long it took."""
        series = self._answered.get((route, status))
        if series is None:
            series = (self.requests.labels(route, status), self.request_seconds.labels(route))
            self._answered[route, status] = series
        answered, duration = series
        answered.inc()
        duration.observe(seconds)

    def render(self) -> bytes:
        """Return the metrics of all workers in Prometheus's text format; not for the event loop."""
        return render(self.registry, self.shared)


def forget_ended(shared: Path, running: Collection[int]) -> None:
    """Remove the gauges of all processes but those `running`; counters stay."""
    for path in shared.glob("gauge_live*_*.db"):
        process = int(path.stem.rpartition("_")[2])
        if process not in running:
            mark_process_dead(process, str(shared))  # type: ignore[no-untyped-call]

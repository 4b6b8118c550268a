"""Every metric that the service exports, by name. README lists the same; a test compares them."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

# Geometric, from 50 microseconds to 6.5 seconds.
SECONDS_BUCKETS = tuple(50e-6 * 2**step for step in range(18))
BATCH_BUCKETS = tuple(float(2**step) for step in range(11))
STAGES = ("queue", "tokenize", "encode", "retrieve", "score", "log_commit", "publish")
ROW_KINDS = ("base", "sealed", "live", "tombstone")
REJECTIONS = ("queue_full", "deadline", "not_ready", "memory_full", "refused", "invalid")


class Telemetry:
    """The metrics of one process; label values come from fixed sets only."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = self._counter("requests_total", "Answered requests", "route", "status")
        self.request_seconds = self._histogram("request_seconds", "Whole request", "route")
        self.stage_seconds = self._histogram("stage_seconds", "One stage of a request", "stage")
        self.queue_depth = self._gauge("queue_depth", "Queries waiting or running")
        self.batch_size = Histogram(
            "keymatch_batch_size",
            "Queries answered by one task, and labels written by one commit",
            ("kind",),
            buckets=BATCH_BUCKETS,
            registry=self.registry,
        )
        self.memory_rows = self._gauge("memory_rows", "Rows of the knowledge memory", "kind")
        self.memory_version = self._gauge("memory_version", "Newest event that answers reflect")
        self.log_lag_events = self._gauge("log_lag_events", "Logged events not yet in the memory")
        self.cache_hits = self._counter("encode_cache_hits_total", "Queries found encoded")
        self.cache_misses = self._counter("encode_cache_misses_total", "Queries encoded")
        self.rejected = self._counter("rejected_total", "Requests not served", "reason")
        self.build_info = self._gauge("build_info", "1, with versions", "version", "bundle")
        for stage in STAGES:
            self.stage_seconds.labels(stage)
        for reason in REJECTIONS:
            self.rejected.labels(reason)

    def observe_stages(self, seconds: Mapping[str, float]) -> None:
        """Count the seconds of each stage once."""
        for stage, value in seconds.items():
            self.stage_seconds.labels(stage).observe(value)

    def render(self) -> bytes:
        """The text exposition format."""
        return generate_latest(self.registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"keymatch_{name}", text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"keymatch_{name}", text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, *labels: str) -> Histogram:
        return Histogram(
            f"keymatch_{name}",
            f"{text}, seconds",
            labels,
            buckets=SECONDS_BUCKETS,
            registry=self.registry,
        )

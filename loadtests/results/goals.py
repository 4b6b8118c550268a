"""The goals of latency, throughput, recall and size; one function for each row of the report.

Each function holds one measurement against its goal. Where a goal is a ratio, both sides come from
the same run.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from loadtests.clients.open_loop import Outcome
from loadtests.measure.footprint import bytes_per_key, resident
from loadtests.measure.latency_summary import Summary
from loadtests.measure.recall import Recall
from loadtests.measure.saturation import Level, best
from loadtests.measure.traffic import Overhead
from loadtests.measure.writing import BulkLoad, WhileWriting
from loadtests.results.result_table import Row
from training.experiments.service_process import Server

PREDICT_P50_MS, PREDICT_P99_MS = 4.0, 10.0  # at the given rate, open loop
REQUESTS_PER_SECOND = 450.0  # closed loop
OVERHEAD_MS = 1.0  # of the service over the predictor alone, median
WRITING_RATIO, LONGEST_PAUSE_MS = 1.5, 50.0  # p99 over the quiet rounds' p99; the slowest answer
RECALL = 0.99
POST_LABEL_MS = 15.0  # median
RESIDENT_MB = 900.0
READY_SECONDS = 3.0
BYTES_PER_KEY = 300.0
BULK_LABELS_PER_SECOND = 800.0


def ready_row(server: Server) -> Row:
    """Time from the start of the server's process to readiness."""
    return Row(
        what="start of the process to ready",
        goal=f"<= {READY_SECONDS:g} s warm",
        measured=f"{server.seconds_to_ready:.2f} s",
        met=server.seconds_to_ready <= READY_SECONDS,
        figures={"seconds": server.seconds_to_ready},
    )


def predictions_row(what: str, outcome: Outcome) -> Row:
    """Latency of predictions in an open loop, counted from the intended starts."""
    latency, late = Summary.of(outcome.latencies), Summary.of(outcome.late)
    return Row(
        what=what,
        goal=f"p50 <= {PREDICT_P50_MS:g} ms, p99 <= {PREDICT_P99_MS:g} ms",
        measured=f"{latency}{_failed(outcome.failures)}",
        met=latency.p50 <= PREDICT_P50_MS
        and latency.p99 <= PREDICT_P99_MS
        and not outcome.failures,
        figures={
            **latency.as_document(),
            "failures": outcome.failures,
            "client_started_late": late.as_document(),
        },
    )


def saturation_row(
    levels: list[Level],
    *,
    what: str = "saturation, closed loop, distinct queries",
    goal: float | None = REQUESTS_PER_SECOND,
) -> Row:
    """Most answers a second over the numbers of connections; `goal` None: it is not judged."""
    most = best(levels)
    failed = {f"{level.connections} connections": level.failed for level in levels if level.failed}
    return Row(
        what=what,
        goal="-" if goal is None else f">= {goal:g} requests/s",
        measured=f"{most.per_second:.0f} requests/s on {most.connections} connections;"
        f" {most.query_processor_ms:.2f} ms of the server's processor time a query"
        f"{_failed(failed)}",
        met=None if goal is None else most.per_second >= goal and not failed,
        figures={
            "per_second": most.per_second,
            "processor_ms": most.query_processor_ms,
            "per_second_by_connections": {
                str(level.connections): round(level.per_second, 1) for level in levels
            },
            "failures": failed,
        },
    )


def overhead_row(overhead: Overhead) -> Row:
    """What the service adds to the predictor's own time."""
    http, bare = Summary.of(overhead.http), Summary.of(overhead.bare)
    return Row(
        what="HTTP, JSON and queueing over the bare predictor, paired, one connection",
        goal=f"<= {OVERHEAD_MS:g} ms at the median",
        measured=f"{overhead.at_median:.2f} ms ({http.p50:.2f} over {bare.p50:.2f};"
        f" {http.count:,} queries each)",
        met=overhead.at_median <= OVERHEAD_MS,
        figures={
            "milliseconds": overhead.at_median,
            "http": http.as_document(),
            "bare": bare.as_document(),
            "stages_p50_ms": overhead.stages,
        },
    )


def resident_row(server: Server) -> Row:
    """Memory of the server's process as it is now."""
    memory = resident(server.pid)
    return Row(
        what="resident memory after the load",
        goal=f"<= {RESIDENT_MB:g} MB a worker",
        measured=f"{memory.total:.0f} MB, of them {memory.shared:.0f} MB mapped files",
        met=memory.total <= RESIDENT_MB,
        figures=memory.as_document(),
    )


def posted_row(seconds: list[float]) -> Row:
    """Latency of labels posted one after the other."""
    latency = Summary.of(seconds)
    return Row(
        what="POST /labels, one label, to synced and visible",
        goal=f"p50 <= {POST_LABEL_MS:g} ms",
        measured=str(latency),
        met=latency.p50 <= POST_LABEL_MS,
        figures=latency.as_document(),
    )


def while_writing_row(what: str, measured: WhileWriting, *, ratio: float = WRITING_RATIO) -> Row:
    """Predictions of rounds with labels against those of rounds without; `ratio` is p99's goal."""
    quiet, writing = Summary.of(measured.quiet), Summary.of(measured.writing)
    labels = Summary.of(measured.labels)
    p50_ratio, p99_ratio = writing.p50 / quiet.p50, writing.p99 / quiet.p99
    figures: dict[str, Any] = {
        "quiet": quiet.as_document(),
        "writing": writing.as_document(),
        "labels": labels.as_document(),
        "p50_ratio": p50_ratio,
        "p99_ratio": p99_ratio,
        "failures": measured.failures,
    }
    return Row(
        what=what,
        goal=f"p99 <= {ratio:g}x its own baseline, no pause over {LONGEST_PAUSE_MS:g} ms",
        measured=f"p50 {p50_ratio:.2f}x, p99 {p99_ratio:.2f}x of the quiet rounds"
        f" ({writing.p99:.1f} / {quiet.p99:.1f} ms), max {writing.maximum:.0f} ms;"
        f" labels p50 {labels.p50:.1f}, p99 {labels.p99:.1f} ms{_failed(measured.failures)}",
        met=p99_ratio <= ratio and writing.maximum <= LONGEST_PAUSE_MS and not measured.failures,
        figures=figures,
    )


def recall_row(what: str, recall: Recall) -> Row:
    """Recall of the index's search against an exact scan."""
    return Row(
        what=what,
        goal=f">= {RECALL:g}",
        measured=f"{recall.mean:.4f} (worst query {recall.worst:.3f}; {recall.queries:,} queries)",
        met=recall.mean >= RECALL,
        figures=asdict(recall),
    )


def bytes_row(bundle: Path) -> Row:
    """Bytes of index and values for each key of a bundle."""
    size = bytes_per_key(bundle, allowance=BYTES_PER_KEY)
    return Row(
        what="bytes a key beyond its fp16 vector: index and values",
        goal=f"<= {BYTES_PER_KEY:g} plus 4 a value = {size.allowed:.0f}",
        measured=f"{size.total:.0f} (index {size.index:.0f}, values {size.values:.0f};"
        f" {size.keys:,} keys)",
        met=size.total <= size.allowed,
        figures=asdict(size),
    )


def bulk_row(bulk: BulkLoad) -> Row:
    """Labels a second of one NDJSON request; every label must have been created."""
    return Row(
        what=f"bulk NDJSON, {bulk.sent:,} labels, each synced and visible",
        goal=f">= {BULK_LABELS_PER_SECOND:g} labels/s",
        measured=f"{bulk.per_second:.0f} labels/s"
        f" ({bulk.created:,} created in {bulk.seconds:.0f} s)",
        met=bulk.created == bulk.sent and bulk.per_second >= BULK_LABELS_PER_SECOND,
        figures={"seconds": bulk.seconds, "created": bulk.created},
    )


def deletions_row(seconds: list[float]) -> Row:
    """Latency of deletions; there is no goal for it."""
    latency = Summary.of(seconds)
    return Row(
        what="DELETE /labels/{id}",
        goal="-",
        measured=str(latency),
        figures=latency.as_document(),
    )


def _failed(failures: dict[str, int]) -> str:
    return f"; FAILED: {failures}" if failures else ""

"""The budget: each goal, and the measurement held against it as a row of the report."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from loadtests.clients.closed_loop import Throughput
from loadtests.clients.open_loop import Outcome
from loadtests.measure import traffic
from loadtests.measure.bare_predictor import BarePredictor
from loadtests.measure.footprint import bytes_a_key, resident
from loadtests.measure.latency_summary import Summary
from loadtests.measure.recall import measure_recall
from loadtests.results.result_table import Row
from service.core.encoding.encoder import encode
from service.core.types import Role
from training.experiments.service_process import Server

P50, P99 = 4.0, 10.0  # milliseconds at the asked rate
PER_SECOND = 450.0
OVERHEAD = 1.0  # milliseconds
WHILE_WRITING, PAUSE = 1.5, 50.0  # times the p99 of the quiet rounds; milliseconds
RECALL = 0.99
POST_LABEL = 15.0  # milliseconds, median
RESIDENT = 900.0  # megabytes
READY = 3.0  # seconds
BYTES_A_KEY = 300.0


def ready_row(server: Server) -> Row:
    return Row(
        what="start of the process to ready",
        goal=f"<= {READY:g} s warm",
        found=f"{server.seconds_to_ready:.2f} s",
        met=server.seconds_to_ready <= READY,
        figures={"seconds": server.seconds_to_ready},
    )


def predictions_row(what: str, outcome: Outcome) -> Row:
    found, late = Summary.of(outcome.latencies), Summary.of(outcome.late)
    return Row(
        what=what,
        goal=f"p50 <= {P50:g} ms, p99 <= {P99:g} ms",
        found=f"{found}{_failed(outcome.failures)}",
        met=found.p50 <= P50 and found.p99 <= P99 and not outcome.failures,
        figures={
            **found.as_document(),
            "failures": outcome.failures,
            "client_started_late": late.as_document(),
        },
    )


def saturation_row(reached: list[Throughput]) -> Row:
    best = max(reached, key=lambda level: level.per_second)
    levels = {str(level.connections): round(level.per_second, 1) for level in reached}
    return Row(
        what="saturation, closed loop, distinct queries",
        goal=f">= {PER_SECOND:g} requests/s",
        found=f"{best.per_second:.0f} requests/s on {best.connections} connections;"
        f" {Summary.of(best.latencies)}",
        met=best.per_second >= PER_SECOND,
        figures={"per_second_by_connections": levels, **Summary.of(best.latencies).as_document()},
    )


def overhead_row(found: traffic.Overhead) -> Row:
    http, bare = Summary.of(found.http), Summary.of(found.bare)
    return Row(
        what="HTTP, JSON and queueing over the bare predictor, paired, one connection",
        goal=f"<= {OVERHEAD:g} ms at the median",
        found=f"{found.at_median:.2f} ms ({http.p50:.2f} over {bare.p50:.2f};"
        f" {http.count:,} queries each)",
        met=found.at_median <= OVERHEAD,
        figures={
            "milliseconds": found.at_median,
            "http": http.as_document(),
            "bare": bare.as_document(),
            "stages_p50_ms": found.stages,
        },
    )


def resident_row(server: Server) -> Row:
    found = resident(server.pid)
    return Row(
        what="resident memory after the load",
        goal=f"<= {RESIDENT:g} MB a worker",
        found=f"{found.total:.0f} MB, of them {found.shared:.0f} MB mapped files",
        met=found.total <= RESIDENT,
        figures=found.as_document(),
    )


def posted_row(seconds: list[float]) -> Row:
    found = Summary.of(seconds)
    return Row(
        what="POST /labels, one label, to synced and visible",
        goal=f"p50 <= {POST_LABEL:g} ms",
        found=str(found),
        met=found.p50 <= POST_LABEL,
        figures=found.as_document(),
    )


def while_writing_row(what: str, found: traffic.WhileWriting) -> Row:
    quiet, writing = Summary.of(found.quiet), Summary.of(found.writing)
    labels, ratio = Summary.of(found.labels), writing.p99 / quiet.p99
    figures: dict[str, Any] = {
        "quiet": quiet.as_document(),
        "writing": writing.as_document(),
        "labels": labels.as_document(),
        "p50_ratio": writing.p50 / quiet.p50,
        "p99_ratio": ratio,
        "failures": found.failures,
    }
    return Row(
        what=what,
        goal=f"p99 <= {WHILE_WRITING:g}x its own baseline, no pause over {PAUSE:g} ms",
        found=f"p50 {writing.p50 / quiet.p50:.2f}x, p99 {ratio:.2f}x of the quiet rounds"
        f" ({writing.p99:.1f} / {quiet.p99:.1f} ms), max {writing.maximum:.0f} ms;"
        f" labels p50 {labels.p50:.1f}, p99 {labels.p99:.1f} ms{_failed(found.failures)}",
        met=ratio <= WHILE_WRITING and writing.maximum <= PAUSE and not found.failures,
        figures=figures,
    )


def recall_row(bare: BarePredictor, queries: list[str]) -> Row:
    vectors = encode(bare.encoder, queries, role=Role.QUERY)
    found = measure_recall(bare.view, vectors, depth=bare.options.depth)
    ef = bare.view.bundle.manifest.index.ef
    return Row(
        what=f"recall@{found.depth} of exact search at ef {ef}",
        goal=f">= {RECALL:g}",
        found=f"{found.mean:.4f} (worst query {found.worst:.3f}; {found.queries:,} queries)",
        met=found.mean >= RECALL,
        figures=asdict(found),
    )


def bytes_row(bundle: Path) -> Row:
    found = bytes_a_key(bundle, allowance=BYTES_A_KEY)
    return Row(
        what="bytes a key beyond its fp16 vector: index and values",
        goal=f"<= {BYTES_A_KEY:g} plus 4 a value = {found.allowed:.0f}",
        found=f"{found.total:.0f} (index {found.index:.0f}, values {found.values:.0f};"
        f" {found.keys:,} keys)",
        met=found.total <= found.allowed,
        figures=asdict(found),
    )


def _failed(failures: dict[str, int]) -> str:
    return f"; FAILED: {failures}" if failures else ""

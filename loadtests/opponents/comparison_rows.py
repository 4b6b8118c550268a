"""The rows of the comparison's report: one for each system and kind of traffic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from loadtests.measure.footprint import resident
from loadtests.measure.latency_summary import Summary
from loadtests.measure.processor_time import process_tree
from loadtests.opponents.rounds import Measured, Side, Traffic
from loadtests.opponents.stores import Store
from loadtests.results.result_table import Row

KEYMATCH, PLAIN = "keymatch", "plain"  # names of sides
TIMES_THE_PLAIN_STACK = 12.0  # throughput at saturation


def traffic_rows(measured: Mapping[Traffic, Mapping[str, Measured]]) -> list[Row]:
    """Throughput or latency, and the servers' processor time."""
    rows = []
    for kind, by_side in measured.items():
        for name, result in by_side.items():
            rows.append(_traffic_row(f"{kind}: {name}", kind, result))
        if kind.rate is None and {KEYMATCH, PLAIN} <= set(by_side):
            rows.append(_ratio_row(by_side))
    return rows


def store_rows(sides: list[Side], stores: Mapping[str, Store]) -> list[Row]:
    """Memory after the load, and the time that loading the keys and starting took."""
    rows = []
    for side in sides:
        megabytes = sum(resident(pid).total for pid in process_tree(side.server.pid))
        seconds = stores[side.name].seconds
        rows.append(
            Row(
                what=f"size and start: {side.name}",
                goal="-",
                measured=f"{megabytes:.0f} MB resident after the load; keys loaded in"
                f" {seconds:.1f} s, ready in {side.server.seconds_to_ready:.1f} s",
                figures={
                    "resident_mb": megabytes,
                    "load_seconds": seconds,
                    "ready_seconds": side.server.seconds_to_ready,
                },
            )
        )
    return rows


def _traffic_row(what: str, kind: Traffic, result: Measured) -> Row:
    figures: dict[str, Any] = {**asdict(kind), "failures": result.failures}
    figures["processor_ms"] = result.processor_ms
    failed = f"; FAILED: {result.failures}" if result.failures else ""
    if not result.latencies:
        return Row(what=what, goal="-", measured=f"no answer{failed}", figures=figures)
    latency = Summary.of(result.latencies)
    figures["latency"] = latency.as_document()
    parts = [f"p50 {latency.p50:.1f} ms, p99 {latency.p99:.1f} ms"]
    if kind.rate is None:
        figures["per_second"] = len(result.latencies) / result.seconds
        parts.insert(0, f"{figures['per_second']:.0f} requests/s")
    if result.inserts:
        inserts = Summary.of(result.inserts)
        figures["insert_latency"] = inserts.as_document()
        parts.append(f"inserts p50 {inserts.p50:.1f}, p99 {inserts.p99:.1f} ms")
    parts.append(f"processor {result.processor_ms:.1f} ms a query")
    return Row(what=what, goal="-", measured="; ".join(parts) + failed, figures=figures)


def _ratio_row(by_side: Mapping[str, Measured]) -> Row:
    keymatch, plain = by_side[KEYMATCH], by_side[PLAIN]
    ratio = (len(keymatch.latencies) / keymatch.seconds) / (len(plain.latencies) / plain.seconds)
    return Row(
        what="saturation of Keymatch over the plain stack's",
        goal=f">= {TIMES_THE_PLAIN_STACK:g}x",
        measured=f"{ratio:.1f}x",
        met=ratio >= TIMES_THE_PLAIN_STACK,
        figures={"ratio": ratio},
    )

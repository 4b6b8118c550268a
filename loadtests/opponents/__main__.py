"""`python -m loadtests.opponents`: Keymatch next to two other ways to serve the same keys.

The opponents are a plain stack and txtai's API service. Each runs in its own server process and
gets the same traffic in turn. Their packages are installed into a separate virtual environment.
Writes opponents.json and opponents.md.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

from loadtests.opponents.rounds import Measured, Plan, Traffic, play, warm_up
from loadtests.opponents.systems import (
    Setup,
    Side,
    chosen,
    load_stores,
    prepared_environment,
    running_sides,
)
from loadtests.queries import distinct, read_queries
from loadtests.report import Report, Row, environment, failures_text
from loadtests.resources import process_tree, resident
from loadtests.traffic import Summary
from service.command_line import open_console, run
from service.core.bundle import manifest
from training.commands.options import MANY

KEYMATCH, PLAIN = "keymatch", "plain"  # names of systems
TIMES_THE_PLAIN_STACK = 12.0  # goal for the throughput at saturation

app = App(name="loadtests.opponents", help=__doc__)


@app.default
def opponents(
    *,
    bundle: Path,
    out: Path,
    only: Annotated[tuple[str, ...], MANY] = (),
    keys: int | None = None,
    packages: Path | None = None,
    plan: Annotated[Plan, Parameter(name="*")] = Plan(),  # noqa: B008 (frozen)
) -> int:
    """Load the keys, start all servers, and measure in turn.

    Parameters
    ----------
    bundle
        Keymatch's bundle. Its key vectors fill the opponents' stores, and its texts are the
        queries. Opponents encode queries with all-MiniLM-L6-v2, so only their speed is compared.
    out
        Folder for the report, the stores and the opponents' environment.
    only
        Names of opponents: plain, txtai. Default: all.
    keys
        The number of the bundle's keys to use, for all systems. Default: all.
    packages
        The opponents' virtual environment. Default: OUT/environment. Missing packages are installed
        into it.
    """
    console, named, facts = open_console(stderr=True), chosen(only), manifest.read(bundle)
    python, versions = prepared_environment(
        packages or out / "environment", named.values(), console=console
    )
    graph = facts.index.parameters()
    setup = Setup(python=python, graph=graph, opponents=named)
    total = keys or facts.memory.instances + facts.memory.labels
    parameters = f"{graph.m}-{graph.ef_construction}-{graph.ef}"
    folder = out / "stores" / f"{facts.encoder.fingerprint[:12]}-{total}-{parameters}"
    stores = load_stores(bundle, folder, setup, keys=keys, console=console)
    console.print("measuring ...")
    Report(
        title="Keymatch and other systems",
        settings={"bundle": facts.name, "keys": total, **asdict(plan)},
        environment={**environment(), "opponents": versions},
        rows=_measured_rows(setup, stores, plan, read_queries(bundle)),
    ).publish(out, "opponents")
    return 0


def _measured_rows(
    setup: Setup, stores: Mapping[str, Path], plan: Plan, texts: list[str]
) -> list[Row]:
    queries = distinct(texts, seed=plan.seed)
    with running_sides(setup, stores) as sides:
        for side in sides:
            warm_up(side, queries)
        rows = traffic_rows(play(sides, plan, queries))
        return rows + [size_row(side) for side in sides]


def traffic_rows(measured: Mapping[Traffic, Mapping[str, Measured]]) -> list[Row]:
    """Rows for throughput or latency, and for the servers' CPU time."""
    rows = []
    for kind, by_side in measured.items():
        for name, result in by_side.items():
            rows.append(_traffic_row(f"{kind}: {name}", kind, result))
        if kind.rate is None and {KEYMATCH, PLAIN} <= set(by_side):
            rows.append(_ratio_row(by_side))
    return rows


def size_row(side: Side) -> Row:
    """A row for the memory after the load, and for the time to readiness."""
    megabytes = sum(resident(pid).total for pid in process_tree(side.server.pid))
    ready = side.server.seconds_to_ready
    return Row(
        what=f"size and start: {side.name}",
        goal="-",
        measured=f"{megabytes:.0f} MB resident after the load; ready in {ready:.1f} s",
        figures={"resident_mb": megabytes, "ready_seconds": ready},
    )


def _traffic_row(what: str, kind: Traffic, result: Measured) -> Row:
    latency, failures = Summary.of(result.latencies), dict(result.failures)
    parts = [f"p50 {latency.p50:.1f} ms, p99 {latency.p99:.1f} ms"]
    figures: dict[str, Any] = {
        **asdict(kind),
        "failures": failures,
        "cpu_ms": result.cpu_ms,
        "latency": latency,
    }
    if kind.rate is None:
        figures["per_second"] = result.per_second
        parts.insert(0, f"{result.per_second:.0f} requests/s")
    if result.inserts:
        inserts = Summary.of(result.inserts)
        figures["insert_latency"] = inserts
        parts.append(f"inserts p50 {inserts.p50:.1f}, p99 {inserts.p99:.1f} ms")
    parts.append(f"CPU {result.cpu_ms:.1f} ms a query")
    measured = "; ".join(parts) if latency.count else str(latency)
    return Row(what=what, goal="-", measured=measured + failures_text(failures), figures=figures)


def _ratio_row(by_side: Mapping[str, Measured]) -> Row:
    ratio = by_side[KEYMATCH].per_second / by_side[PLAIN].per_second
    return Row(
        what="saturation of Keymatch over the plain stack's",
        goal=f">= {TIMES_THE_PLAIN_STACK:g}x",
        measured=f"{ratio:.1f}x",
        met=ratio >= TIMES_THE_PLAIN_STACK,
        figures={"ratio": ratio},
    )


if __name__ == "__main__":
    sys.exit(run(app))

"""`python -m loadtests.opponents`: Keymatch next to two other ways to serve the same keys.

The opponents are a plain stack and txtai's API service. Each runs in its own server process and
gets the same traffic in turn. Their packages are installed into a separate virtual environment.
Writes opponents.json and opponents.md.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from loadtests.harness import Scenario, command, said, say
from loadtests.opponents.rounds import Measured, Traffic, kinds, play, warm_up
from loadtests.opponents.systems import (
    Setup,
    Side,
    chosen,
    load_stores,
    prepared_environment,
    running_sides,
)
from loadtests.report import Row, failures_text
from loadtests.resources import process_tree, resident
from loadtests.traffic import Summary
from service.command_line import run
from service.core.bundle import manifest
from training.commands.options import MANY

KEYMATCH, PLAIN = "keymatch", "plain"  # names of systems
TIMES_THE_PLAIN_STACK = 12.0  # goal for the throughput at saturation


@dataclass(frozen=True, kw_only=True)
class Opponents(Scenario):
    """Keymatch's bundle, and stores of the same keys.

    The bundle's key vectors fill the opponents' stores, and its texts are the queries. Opponents
    encode queries with all-MiniLM-L6-v2, so only their speed is compared.
    """

    title = "Keymatch and other systems"

    only: Annotated[
        tuple[str, ...], said("Names of opponents: plain, txtai. Default: all.", MANY)
    ] = ()
    keys: Annotated[
        int | None,
        said("The number of the bundle's keys to use, for all systems. Default: all."),
    ] = None
    packages: Annotated[
        Path | None,
        said(
            "The opponents' virtual environment. Default: OUT/environment. Missing packages are"
            " installed into it."
        ),
    ] = None
    seconds: Annotated[float, said("Length of each measurement.")] = 6.0
    rounds: Annotated[int, said("Number of repetitions of each measurement.")] = 2
    rates: Annotated[tuple[float, ...], said("Queries per second in the open loops.", MANY)] = (
        40.0,
        100.0,
    )
    inserts: Annotated[
        float, said("Inserted texts per second, in addition to each of the rates.")
    ] = 50.0

    def rows(self) -> Iterator[Row]:
        """Load the keys, start all servers, and measure in turn."""
        named, facts = chosen(self.only), manifest.read(self.bundle)
        environment = self.packages or self.out / "environment"
        say(f"preparing the environment {environment} ...")
        python, versions = prepared_environment(environment, named.values())
        graph = facts.index.parameters()
        setup = Setup(python=python, graph=graph, opponents=named)
        total = self.keys or facts.memory.instances + facts.memory.labels
        parameters = f"{graph.m}-{graph.ef_construction}-{graph.ef}"
        folder = self.out / "stores" / f"{facts.encoder.fingerprint[:12]}-{total}-{parameters}"
        stores = load_stores(self.bundle, folder, setup, keys=self.keys)
        say("measuring ...")
        with running_sides(setup, stores) as sides:
            queries = self.texts()
            for side in sides:
                warm_up(side, queries)
            traffic = kinds(self.rates, inserts=self.inserts)
            yield from traffic_rows(
                play(
                    sides,
                    traffic,
                    queries,
                    rounds=self.rounds,
                    seconds=self.seconds,
                    seed=self.seed,
                )
            )
            for side in sides:
                yield size_row(side)
        yield Row(what="the opponents' packages", measured=str(versions), figures={**versions})


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
    return Row(what=what, measured=measured + failures_text(failures), figures=figures)


def _ratio_row(by_side: Mapping[str, Measured]) -> Row:
    ratio = by_side[KEYMATCH].per_second / by_side[PLAIN].per_second
    return Row.bounded(
        "saturation of Keymatch over the plain stack's",
        ratio,
        least=TIMES_THE_PLAIN_STACK,
        unit="x",
        measured=f"{ratio:.1f}x",
        figures={"ratio": ratio},
    )


app = command(Opponents)

if __name__ == "__main__":
    sys.exit(run(app))

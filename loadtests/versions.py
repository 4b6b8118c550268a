"""`python -m loadtests.versions`: compares the present source with an older checkout in one run.

Both servers run at the same time, each with its own bundle, and take turns in each round. The side
that goes first alternates. Each figure is the median over the rounds. Writes versions.json and
versions.md.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from statistics import median

from cyclopts import App

from loadtests.clients.connection import RequestFailed, one_by_one, predict, put_label
from loadtests.queries import distinct, read_queries
from loadtests.report import Report, Row
from loadtests.resources import with_cpu_time
from loadtests.saturation import measure_saturation
from loadtests.traffic import Load, Summary, measure_predictions
from service.child_server import Server, running_server
from service.command_line import open_console, run

SATURATING_CONNECTIONS = (8, 16)

app = App(name="loadtests.versions", help=__doc__)

Figures = dict[str, float]  # name of the figure -> value


@app.default
def versions(
    *,
    before: Path,
    before_bundle: Path,
    bundle: Path,
    out: Path,
    rounds: int = 5,
    queries: int = 500,
    labels: int = 100,
    seconds: float = 4.0,
    rate: float = 100.0,
    seed: int = 0,
) -> int:
    """Measure and report.

    Parameters
    ----------
    before
        A checkout of the older source.
    before_bundle
        The bundle that the older source serves.
    bundle
        The bundle that the present source serves; its texts are the queries of both sides.
    out
        Folder for versions.json and versions.md.
    rounds
        Number of rounds; each measures both servers.
    queries
        Queries per round, sent one after the other.
    labels
        Labels per round, posted one after the other.
    seconds
        Seconds of the closed loop, and of the open loop, in each round.
    rate
        Requests per second in the open loop.
    seed
        Draws queries and arrivals.
    """
    load = Load(rate=rate, seconds=seconds, seed=seed)
    with (
        running_server(before_bundle, options=["--no-access-log"], checkout=before) as old,
        running_server(bundle, options=["--no-access-log"]) as new,
    ):
        sides = {
            name: Side(server=server, texts=distinct(read_queries(bundle), seed=seed))
            for name, server in (("before", old), ("after", new))
        }
        measured = take_turns(sides, load, rounds=rounds, queries=queries, labels=labels)
    Report(
        title="This version against an older one",
        settings={
            **asdict(load),
            "rounds": rounds,
            "queries": queries,
            "labels": labels,
            "before": before_bundle.name,
        },
        rows=[compared(what, measured) for what in measured["after"][0]],
    ).publish(out, "versions")
    return 0


@dataclass(frozen=True, kw_only=True)
class Side:
    """A running server and its endless queries."""

    server: Server
    texts: Iterator[str]


def take_turns(
    sides: Mapping[str, Side], load: Load, *, rounds: int, queries: int, labels: int
) -> dict[str, list[Figures]]:
    """Measure the sides in turn; return each side's figures by round."""
    console = open_console(stderr=True)
    measured: dict[str, list[Figures]] = {name: [] for name in sides}
    for turn in range(rounds + 1):  # the first round is a warm-up
        for name in reversed(list(sides)) if turn % 2 else sides:
            console.print(f"round {turn} of {rounds}: {name}")
            figures = play_round(sides[name], load, turn=turn, queries=queries, labels=labels)
            if turn:
                measured[name].append(figures)
    return measured


def play_round(side: Side, load: Load, *, turn: int, queries: int, labels: int) -> Figures:
    """Measure one server once: `queries` and `labels` one by one, saturation, and an open loop."""
    server, texts = side.server, side.texts
    figures = _one_by_one(
        server, "one connection", [predict(text) for text in islice(texts, queries)]
    )
    both = load.seconds * len(SATURATING_CONNECTIONS)
    for level in measure_saturation(server, texts, seconds=both, levels_of=SATURATING_CONNECTIONS):
        if level.failed:
            raise RequestFailed(f"{level.failed} requests were neither answered nor refused")
        name = f"{level.connections} connections"
        figures[f"{name}: requests a second"] = level.per_second
        figures[f"{name}: CPU ms a query"] = level.query_cpu_ms
    outcome, cpu = with_cpu_time(
        server.pid, lambda: measure_predictions(server, texts, load, turn=turn)
    )
    latency, name = Summary.of(outcome.latencies), f"open loop, {load.rate:g}/s"
    figures[f"{name}: p50 ms"] = latency.p50
    figures[f"{name}: p99 ms"] = latency.p99
    figures[f"{name}: CPU ms a query"] = 1000 * cpu / len(outcome.late)
    posts = [
        put_label(f"versions-{turn}-{number}", f"{text} {number}")
        for number, text in enumerate(islice(texts, labels))
    ]
    return figures | _one_by_one(server, "one label a request", posts)


def _one_by_one(server: Server, name: str, requests: Sequence[bytes]) -> Figures:
    (seconds, _), cpu = with_cpu_time(server.pid, lambda: one_by_one(server.port, requests))
    return {
        f"{name}: CPU ms a request": 1000 * cpu / len(requests),
        f"{name}: p50 ms": 1000 * median(seconds),
    }


def compared(what: str, measured: dict[str, list[Figures]]) -> Row:
    """Return the row of one figure: its medians on both sides, and their ratio."""
    rounds = {side: [figures[what] for figures in measured[side]] for side in measured}
    before, after = (median(rounds[side]) for side in ("before", "after"))
    return Row(
        what=what,
        goal="",
        measured=f"{before:.2f} -> {after:.2f} ({after / before:.2f} of it)",
        figures={"before": rounds["before"], "after": rounds["after"]},
    )


if __name__ == "__main__":
    sys.exit(run(app))

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

import numpy as np
from cyclopts import App

from loadtests.clients.connection import one_by_one, predict, put_label
from loadtests.clients.flood import saturate
from loadtests.clients.open_loop import Stream, drive, poisson_starts
from loadtests.queries import distinct, read_queries
from loadtests.report import Report, Row
from loadtests.resources import with_cpu_time
from service.child_server import Server, running_server
from service.command_line import open_console, run

SATURATING_CONNECTIONS = (8, 16)
_MOST_PER_SECOND = 4_000  # requests prepared per second of a closed loop

app = App(name="loadtests.versions", help=__doc__)

Figures = dict[str, float]  # name of the figure -> value


@dataclass(frozen=True, kw_only=True)
class RoundSettings:
    """The traffic of one server in one round."""

    queries: int
    labels: int
    seconds: float
    rate: float


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
    settings = RoundSettings(queries=queries, labels=labels, seconds=seconds, rate=rate)
    with (
        running_server(before_bundle, options=["--no-access-log"], checkout=before) as old,
        running_server(bundle, options=["--no-access-log"]) as new,
    ):
        sides = {
            "before": Side(server=old, texts=distinct(read_queries(bundle), seed=seed)),
            "after": Side(server=new, texts=distinct(read_queries(bundle), seed=seed)),
        }
        measured = take_turns(sides, settings, rounds=rounds, seed=seed)
    Report(
        title="This version against an older one",
        settings={**asdict(settings), "rounds": rounds, "before": before_bundle.name},
        rows=[_row(what, measured) for what in measured["after"][0]],
    ).publish(out, "versions")
    return 0


@dataclass(frozen=True, kw_only=True)
class Side:
    """A running server and its endless queries."""

    server: Server
    texts: Iterator[str]


def take_turns(
    sides: Mapping[str, Side], settings: RoundSettings, *, rounds: int, seed: int
) -> dict[str, list[Figures]]:
    """Measure the sides in turn; return each side's figures by round."""
    console = open_console(stderr=True)
    measured: dict[str, list[Figures]] = {name: [] for name in sides}
    for turn in range(-1, rounds):  # the first round is a warm-up
        for name in sides if turn % 2 else reversed(list(sides)):
            console.print(f"round {turn + 1} of {rounds}: {name}")
            side = sides[name]
            figures = play_round(side.server, side.texts, settings, seed=seed + turn + 1)
            if turn >= 0:
                measured[name].append(figures)
    return measured


def play_round(
    server: Server, texts: Iterator[str], settings: RoundSettings, *, seed: int
) -> Figures:
    """Measure one server once."""
    queries = [predict(text) for text in islice(texts, settings.queries)]
    labels = [
        put_label(f"versions-{seed}-{number}", f"{text} {number}")
        for number, text in enumerate(islice(texts, settings.labels))
    ]
    return {
        **_one_by_one(server, "one connection", queries),
        **_saturation(server, texts, settings.seconds, connections=SATURATING_CONNECTIONS[0]),
        **_saturation(server, texts, settings.seconds, connections=SATURATING_CONNECTIONS[1]),
        **_open_loop(server, texts, settings, seed),
        **_one_by_one(server, "one label a request", labels),
    }


def _one_by_one(server: Server, name: str, requests: Sequence[bytes]) -> Figures:
    (seconds, _), cpu = with_cpu_time(server.pid, lambda: one_by_one(server.port, requests))
    return {
        f"{name}: CPU ms a request": cpu / len(requests) * 1000,
        f"{name}: p50 ms": float(np.median(seconds)) * 1000,
    }


def _saturation(
    server: Server, texts: Iterator[str], seconds: float, *, connections: int
) -> Figures:
    requests = [predict(query) for query in islice(texts, int(_MOST_PER_SECOND * seconds))]
    result, cpu = with_cpu_time(
        server.pid,
        lambda: saturate(server.port, requests, connections=connections, seconds=seconds),
    )
    return {
        f"{connections} connections: requests a second": result.per_second,
        f"{connections} connections: CPU ms a query": cpu / len(result.latencies) * 1000,
    }


def _open_loop(server: Server, texts: Iterator[str], settings: RoundSettings, seed: int) -> Figures:
    starts = poisson_starts(rate=settings.rate, seconds=settings.seconds, seed=seed)
    requests = [predict(query) for query in islice(texts, len(starts))]
    stream = Stream(name="predict", requests=requests, starts=starts)
    outcomes, cpu = with_cpu_time(server.pid, lambda: drive(server.port, [stream]))
    latencies = outcomes["predict"].latencies
    name = f"open loop, {settings.rate:g}/s"
    return {
        f"{name}: p50 ms": float(np.median(latencies)) * 1000,
        f"{name}: p99 ms": float(np.quantile(latencies, 0.99)) * 1000,
        f"{name}: CPU ms a query": cpu / len(starts) * 1000,
    }


def _row(what: str, measured: dict[str, list[Figures]]) -> Row:
    rounds = {side: [figures[what] for figures in measured[side]] for side in measured}
    before, after = (float(np.median(rounds[side])) for side in ("before", "after"))
    return Row(
        what=what,
        goal="",
        measured=f"{before:.2f} -> {after:.2f} ({after / before:.2f} of it)",
        figures={"before": rounds["before"], "after": rounds["after"]},
    )


if __name__ == "__main__":
    sys.exit(run(app))

"""`python -m loadtests.versions`: compares the present source with an older checkout in one run.

Both servers run at the same time, each with its own bundle, and take turns in each round. The side
that goes first alternates. Each figure is the median over the rounds. Writes versions.json and
versions.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Annotated, ClassVar

from cyclopts import Parameter

from loadtests.connection import RequestFailed, one_by_one, predict, put_label
from loadtests.harness import Scenario, option, say
from loadtests.report import Row
from loadtests.resources import with_cpu_time
from loadtests.traffic import PREDICT, Load, Summary, measure_mixed, measure_saturation
from service.child_server import Server, running_server

BUSY_RATE = 40.0  # queries per second next to labels

Figures = dict[str, float]  # name of the figure -> value
Rounds = Annotated[int, Parameter(help="Number of rounds; each measures both servers.")]
Queries = Annotated[int, Parameter(help="Queries per round, sent one after the other.")]
Labels = Annotated[int, Parameter(help="Labels per round, posted one after the other.")]
Seconds = Annotated[
    float, Parameter(help="Seconds of the closed loop, and of the open loop, in each round.")
]
Rate = Annotated[float, Parameter(help="Requests per second in the open loop.")]


@dataclass(frozen=True, kw_only=True)
class TwoServers(Scenario):
    """Two servers that run at the same time and answer the same traffic in turn."""

    connections: ClassVar[Sequence[int]] = (8, 16)  # of the closed loops

    rounds: Rounds = 5
    queries: Queries = 500
    labels: Labels = 100
    seconds: Seconds = 4.0
    rate: Rate = 100.0
    inserts: float = option(
        "Labels per second next to a second open loop of 40 queries/s; 0 leaves it out.", 0.0
    )

    def compared(self, **servers: Server) -> Iterator[Row]:
        """Measure the servers in turn; yield a row per figure: both medians, and their ratio."""
        texts = {name: self.texts() for name in servers}
        measured: dict[str, list[Figures]] = {name: [] for name in servers}
        for turn in range(self.rounds + 1):  # the first round is a warm-up
            for name in reversed(servers) if turn % 2 else servers:
                say(f"round {turn} of {self.rounds}: {name}")
                figures = self._round(servers[name], texts[name], turn)
                if turn:
                    measured[name].append(figures)
        for what in next(iter(measured.values()))[0]:
            rounds = {name: [one[what] for one in measured[name]] for name in servers}
            old, new = (median(values) for values in rounds.values())
            said_so = f"{old:.2f} -> {new:.2f} ({new / old:.2f} of it)"
            yield Row(what=what, measured=said_so, figures={**rounds, "ratio": new / old})

    def _round(self, server: Server, texts: Iterator[str], turn: int) -> Figures:
        """Measure one server once: one by one, in two closed loops, and in open loops."""
        asked = [predict(text) for text in islice(texts, self.queries)]
        figures = _one_by_one(server, "one connection", asked)
        seconds = self.seconds * len(self.connections)
        for level in measure_saturation(server, texts, seconds=seconds, levels_of=self.connections):
            if level.failed:
                raise RequestFailed(f"{level.failed} requests were neither answered nor refused")
            name = f"{level.connections} connections"
            figures[f"{name}: requests a second"] = level.per_second
            figures[f"{name}: CPU ms a query"] = level.query_cpu_ms
        load = Load(rate=self.rate, seconds=self.seconds, seed=self.seed)
        loads = [(load, f"open loop, {self.rate:g}/s")]
        if self.inserts:
            busy = replace(load, rate=BUSY_RATE, label_rate=self.inserts)
            loads.append((busy, f"{BUSY_RATE:g}/s, with {self.inserts:g} labels/s"))
        for load, name in loads:
            outcomes, cpu = with_cpu_time(
                server.pid, partial(measure_mixed, server, texts, load, turn=turn)
            )
            latency = Summary.of(outcomes[PREDICT].latencies)
            figures[f"{name}: p50 ms"] = latency.p50
            figures[f"{name}: p99 ms"] = latency.p99
            figures[f"{name}: CPU ms a query"] = 1000 * cpu / len(outcomes[PREDICT].late)
        posts = [
            put_label(f"versions-{turn}-{number}", f"{text} {number}")
            for number, text in enumerate(islice(texts, self.labels))
        ]
        return figures | _one_by_one(server, "one label a request", posts)


def _one_by_one(server: Server, name: str, requests: Sequence[bytes]) -> Figures:
    (seconds, _), cpu = with_cpu_time(server.pid, lambda: one_by_one(server.port, requests))
    return {
        f"{name}: CPU ms a request": 1000 * cpu / len(requests),
        f"{name}: p50 ms": 1000 * median(seconds),
    }


@dataclass(frozen=True, kw_only=True)
class Versions(TwoServers):
    """The present source and an older one."""

    title = "This version against an older one"

    before: Path = option("A checkout of the older source.")
    before_bundle: Path = option("The bundle that the older source serves.")

    def rows(self) -> Iterator[Row]:
        """Start both servers and compare them."""
        quiet = ["--no-access-log"]
        with (
            running_server(self.before_bundle, options=quiet, checkout=self.before) as old,
            self.server() as new,
        ):
            yield from self.compared(before=old, after=new)


if __name__ == "__main__":
    Versions.command()

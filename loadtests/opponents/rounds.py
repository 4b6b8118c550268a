"""The rounds of the comparison: every system in turn gets the same traffic, repeatedly.

All servers run all the time, but only one of them gets requests. The system that goes first changes
with every round, so a noisy minute of the machine does not affect one system alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Annotated

import numpy as np

from loadtests.clients.flood import saturate
from loadtests.clients.open_loop import Stream, drive, poisson_starts
from loadtests.opponents.systems import Requests, Side
from loadtests.resources import cpu_seconds
from training.commands.options import MANY

PREDICT, INSERT, PUBLISH = "predict", "insert", "publish"  # names of the streams
CONNECTIONS = 8  # in the closed loop: enough to keep two cores busy
_MOST_PER_SECOND = 2_000  # prepared requests: more than a system answers per second
_PUBLISH_SECONDS = 1.0
WARM_UP_REQUESTS, WARM_UP_SECONDS = 100, 30.0


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """One kind of traffic: `rate` queries per second in an open loop, or a closed loop if None."""

    rate: float | None
    inserts: float = 0.0  # per second

    def __str__(self) -> str:
        """Return the text for a table cell."""
        if self.rate is None:
            return f"closed loop, {CONNECTIONS} connections"
        inserting = f" with {self.inserts:g} inserts/s" if self.inserts else ""
        return f"{self.rate:g}/s{inserting}"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The plan of the measurements: their number, length and rates.

    Attributes
    ----------
    seconds
        Length of each measurement.
    rounds
        Number of repetitions of each measurement.
    rates
        Queries per second in the open loops.
    inserts
        Inserted texts per second, in addition to each of the rates.
    seed
        Draws queries and arrivals.
    """

    seconds: float = 6.0
    rounds: int = 2
    rates: Annotated[tuple[float, ...], MANY] = (40.0, 100.0)
    inserts: float = 50.0
    seed: int = 0

    def kinds(self) -> list[Traffic]:
        """The kinds of traffic: saturation, each rate, and each rate with inserts."""
        quiet = [Traffic(rate=rate) for rate in self.rates]
        return [Traffic(rate=None), *quiet, *(replace(k, inserts=self.inserts) for k in quiet)]


@dataclass(kw_only=True)
class Measured:
    """The results of one system under one kind of traffic, over all rounds."""

    latencies: list[float] = field(default_factory=list)  # seconds per query
    inserts: list[float] = field(default_factory=list)  # seconds per insert
    failures: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0  # total length of the closed loops
    cpu_seconds: float = 0.0  # of the server's processes

    @property
    def per_second(self) -> float:
        """Answered queries per second in the closed loops."""
        return len(self.latencies) / self.seconds

    @property
    def cpu_ms(self) -> float:
        """Milliseconds of CPU time per answered query, including the time for inserts."""
        return self.cpu_seconds / max(len(self.latencies), 1) * 1000


def play(
    sides: Sequence[Side], plan: Plan, queries: Iterator[str]
) -> dict[Traffic, dict[str, Measured]]:
    """Send each kind of traffic to each side in every round."""
    kinds = plan.kinds()
    measured = {kind: {side.name: Measured() for side in sides} for kind in kinds}
    for turn in range(plan.rounds):
        first = turn % len(sides)
        for kind in kinds:
            for side in (*sides[first:], *sides[:first]):
                # Arrivals differ between rounds, but are the same for all systems in a round.
                drawn = replace(plan, seed=plan.seed + turn)
                _measure(side, kind, queries, drawn, measured[kind][side.name])
    return measured


def _measure(
    side: Side, kind: Traffic, queries: Iterator[str], plan: Plan, measured: Measured
) -> None:
    before, port = cpu_seconds(side.server.pid), side.server.port
    if kind.rate is None:
        texts = islice(queries, int(_MOST_PER_SECOND * plan.seconds))
        requests = [side.requests.predict(text) for text in texts]
        reached = saturate(port, requests, connections=CONNECTIONS, seconds=plan.seconds)
        measured.latencies += reached.latencies
        measured.seconds += reached.seconds
        measured.failures.update(["429"] * reached.refused)
    else:
        outcomes = drive(port, streams(side.requests, kind, queries, plan))
        measured.latencies += outcomes[PREDICT].latencies
        if INSERT in outcomes:
            measured.inserts += outcomes[INSERT].latencies
        for outcome in outcomes.values():
            measured.failures.update(outcome.failures)
    measured.cpu_seconds += cpu_seconds(side.server.pid) - before


def warm_up(side: Side, queries: Iterator[str]) -> None:
    """Send queries until a server has mapped or built what it loads on first use."""
    requests = [side.requests.predict(text) for text in islice(queries, WARM_UP_REQUESTS)]
    saturate(side.server.port, requests, connections=CONNECTIONS, seconds=WARM_UP_SECONDS)


def streams(requests: Requests, kind: Traffic, queries: Iterator[str], plan: Plan) -> list[Stream]:
    """Return the streams of the open loop: queries, and inserts at the same time."""
    assert kind.rate is not None
    seconds, seed = plan.seconds, plan.seed
    starts = poisson_starts(rate=kind.rate, seconds=seconds, seed=seed)
    asked = [requests.predict(query) for query in islice(queries, len(starts))]
    planned = [Stream(name=PREDICT, requests=asked, starts=starts)]
    if kind.inserts:
        starts = poisson_starts(rate=kind.inserts, seconds=seconds, seed=seed + 1_000)
        texts = list(islice(queries, len(starts)))
        # A text that is drawn again in a later round gets another id.
        posts = [requests.insert(f"{kind} {seed} {text}", f"{text} {seed}") for text in texts]
        planned.append(Stream(name=INSERT, requests=posts, starts=starts))
        if requests.publish is not None:
            times = list(np.arange(_PUBLISH_SECONDS, seconds + _PUBLISH_SECONDS, _PUBLISH_SECONDS))
            published = [requests.publish] * len(times)
            planned.append(Stream(name=PUBLISH, requests=published, starts=times))
    return planned

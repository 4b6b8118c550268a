"""The rounds of the comparison: every system in turn gets the same traffic, again and again.

All servers run all the time, but only one of them gets requests. The system that goes first changes
with every round, so that a noisy minute of the machine does not fall on one system alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Annotated

import numpy as np

from loadtests.clients.closed_loop import saturate
from loadtests.clients.open_loop import Outcome, Stream, drive, poisson_starts
from loadtests.measure.processor_time import processor_seconds
from loadtests.opponents.registry import Requests
from loadtests.opponents.sides import Side
from training.commands.options import MANY

PREDICT, INSERT, PUBLISH = "predict", "insert", "publish"  # names of the streams
CONNECTIONS = 8  # of the closed loop: enough to keep two cores busy
_MOST_PER_SECOND = 2_000  # more requests than a system answers in a second: the loop never runs out
_PUBLISH_SECONDS = 1.0
WARM_UP_REQUESTS, WARM_UP_SECONDS = 100, 30.0


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """One kind of traffic; `rate` queries a second in an open loop, None for a closed loop."""

    rate: float | None
    inserts: float = 0.0  # a second

    def __str__(self) -> str:
        """The text of a table cell."""
        if self.rate is None:
            return f"closed loop, {CONNECTIONS} connections"
        beside = f" beside {self.inserts:g} inserts/s" if self.inserts else ""
        return f"{self.rate:g}/s{beside}"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is measured, how often and how long.

    Attributes
    ----------
    seconds
        Length of each measurement.
    rounds
        How often each measurement is repeated.
    rates
        Queries a second of the open loops.
    inserts
        Inserted texts a second beside each of the rates.
    seed
        Draws queries and arrivals.
    """

    seconds: float = 6.0
    rounds: int = 2
    rates: Annotated[tuple[float, ...], MANY] = (40.0, 100.0)
    inserts: float = 50.0
    seed: int = 0

    def kinds(self) -> list[Traffic]:
        """Saturation, the rates, and the rates with inserts."""
        quiet = [Traffic(rate=rate) for rate in self.rates]
        return [Traffic(rate=None), *quiet, *(replace(k, inserts=self.inserts) for k in quiet)]


@dataclass(kw_only=True)
class Measured:
    """What one system did with one kind of traffic, over all rounds."""

    latencies: list[float] = field(default_factory=list)  # seconds, of queries
    inserts: list[float] = field(default_factory=list)  # seconds
    failures: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0  # of the closed loops
    processor_seconds: float = 0.0  # of the servers' processes

    @property
    def processor_ms(self) -> float:
        """Processor time for each answered query, in milliseconds; it includes the inserts'."""
        return self.processor_seconds / max(len(self.latencies), 1) * 1000


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
                # Arrivals differ between rounds, and are the same for all sides of a round.
                drawn = replace(plan, seed=plan.seed + turn)
                _measure(side, kind, queries, drawn, measured[kind][side.name])
    return measured


def _measure(
    side: Side, kind: Traffic, queries: Iterator[str], plan: Plan, measured: Measured
) -> None:
    before = processor_seconds(side.server.pid)
    if kind.rate is None:
        texts = islice(queries, int(_MOST_PER_SECOND * plan.seconds))
        requests = [side.requests.predict(text) for text in texts]
        reached = saturate(
            side.server.port, requests, connections=CONNECTIONS, seconds=plan.seconds
        )
        measured.latencies += reached.latencies
        measured.seconds += reached.seconds
        if reached.refused:
            measured.failures["429"] = measured.failures.get("429", 0) + reached.refused
    else:
        planned = streams(side.requests, kind, queries, plan)
        _add(measured, drive(side.server.port, planned))
    measured.processor_seconds += processor_seconds(side.server.pid) - before


def warm_up(side: Side, queries: Iterator[str]) -> None:
    """Read what a server maps or builds when it is first used."""
    requests = [side.requests.predict(text) for text in islice(queries, WARM_UP_REQUESTS)]
    saturate(side.server.port, requests, connections=CONNECTIONS, seconds=WARM_UP_SECONDS)


def streams(requests: Requests, kind: Traffic, queries: Iterator[str], plan: Plan) -> list[Stream]:
    """The open loop's queries, and the inserts beside them."""
    assert kind.rate is not None
    seconds, seed = plan.seconds, plan.seed
    starts = poisson_starts(rate=kind.rate, seconds=seconds, seed=seed)
    asked = [requests.predict(query) for query in islice(queries, len(starts))]
    planned = [Stream(name=PREDICT, requests=asked, starts=starts)]
    if kind.inserts:
        starts = poisson_starts(rate=kind.inserts, seconds=seconds, seed=seed + 1_000)
        texts = list(islice(queries, len(starts)))
        # A text that is drawn again in a later round is inserted under another id.
        posts = [requests.insert(f"{kind} {seed} {text}", f"{text} {seed}") for text in texts]
        planned.append(Stream(name=INSERT, requests=posts, starts=starts))
        if requests.publish is not None:
            times = list(np.arange(_PUBLISH_SECONDS, seconds + _PUBLISH_SECONDS, _PUBLISH_SECONDS))
            published = [requests.publish] * len(times)
            planned.append(Stream(name=PUBLISH, requests=published, starts=times))
    return planned


def _add(measured: Measured, outcomes: Mapping[str, Outcome]) -> None:
    measured.latencies += outcomes[PREDICT].latencies
    if INSERT in outcomes:
        measured.inserts += outcomes[INSERT].latencies
    for outcome in outcomes.values():
        for reason, count in outcome.failures.items():
            measured.failures[reason] = measured.failures.get(reason, 0) + count

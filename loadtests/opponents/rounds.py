"""The rounds of the comparison: every system in turn gets the same traffic, repeatedly.

All servers run all the time, but only one of them gets requests. The system that goes first changes
with every round, so a noisy minute of the machine does not affect one system alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice

import numpy as np

from loadtests.clients.flood import saturate
from loadtests.clients.open_loop import Stream, drive
from loadtests.opponents.systems import Requests, Side
from loadtests.resources import with_cpu_time
from loadtests.traffic import LABELS, PREDICT, Load

PUBLISH = "publish"  # name of a stream
CONNECTIONS = 8  # in the closed loop: enough to keep two cores busy
_MOST_PER_SECOND = 2_000  # prepared requests: more than a system answers per second
_PUBLISH_SECONDS = 1.0
WARM_UP_REQUESTS, WARM_UP_SECONDS = 100, 30.0


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """One kind of traffic: `rate` queries per second in an open loop, or a closed loop if None."""

    rate: float | None
    inserts: float = 0.0  # per second

    def load(self, *, seconds: float, seed: int) -> Load:
        """Return the load of one round; its rate is 0 in a closed loop."""
        rate = self.rate or 0.0
        return Load(rate=rate, label_rate=self.inserts, seconds=seconds, seed=seed)

    def __str__(self) -> str:
        """Return the text for a table cell."""
        if self.rate is None:
            return f"closed loop, {CONNECTIONS} connections"
        inserting = f" with {self.inserts:g} inserts/s" if self.inserts else ""
        return f"{self.rate:g}/s{inserting}"


def kinds(rates: Sequence[float], *, inserts: float) -> list[Traffic]:
    """Return the kinds of traffic: saturation, each rate, and each rate with inserts."""
    quiet = [Traffic(rate=rate) for rate in rates]
    return [Traffic(rate=None), *quiet, *(replace(kind, inserts=inserts) for kind in quiet)]


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
    sides: Sequence[Side],
    traffic: Sequence[Traffic],
    queries: Iterator[str],
    *,
    rounds: int,
    seconds: float,
    seed: int,
) -> dict[Traffic, dict[str, Measured]]:
    """Send each kind of traffic to each side in every round, for `seconds` each."""
    measured = {kind: {side.name: Measured() for side in sides} for kind in traffic}
    for turn in range(rounds):
        first = turn % len(sides)
        for kind in traffic:
            for side in (*sides[first:], *sides[:first]):
                # Arrivals differ between rounds, but are the same for all systems in a round.
                load = kind.load(seconds=seconds, seed=seed + turn)
                work = partial(_measure, side, kind, queries, load, measured[kind][side.name])
                _, cpu = with_cpu_time(side.server.pid, work)
                measured[kind][side.name].cpu_seconds += cpu
    return measured


def _measure(
    side: Side, kind: Traffic, queries: Iterator[str], load: Load, measured: Measured
) -> None:
    port = side.server.port
    if kind.rate is None:
        texts = islice(queries, int(_MOST_PER_SECOND * load.seconds))
        requests = [side.requests.predict(text) for text in texts]
        reached = saturate(port, requests, connections=CONNECTIONS, seconds=load.seconds)
        measured.latencies += reached.latencies
        measured.seconds += reached.seconds
        measured.failures.update(["429"] * reached.refused)
        return
    outcomes = drive(port, streams(side.requests, kind, queries, load))
    measured.latencies += outcomes[PREDICT].latencies
    if LABELS in outcomes:
        measured.inserts += outcomes[LABELS].latencies
    for outcome in outcomes.values():
        measured.failures.update(outcome.failures)


def warm_up(side: Side, queries: Iterator[str]) -> None:
    """Send queries until a server has mapped or built what it loads on first use."""
    requests = [side.requests.predict(text) for text in islice(queries, WARM_UP_REQUESTS)]
    saturate(side.server.port, requests, connections=CONNECTIONS, seconds=WARM_UP_SECONDS)


def streams(requests: Requests, kind: Traffic, queries: Iterator[str], load: Load) -> list[Stream]:
    """Return the streams of the open loop: queries, and inserts at the same time."""
    planned = [load.predictions(queries, request=requests.predict)]
    if kind.inserts:
        # A text that is drawn again in a later round gets another id.
        posts = (
            requests.insert(f"{kind} {load.seed} {text}", f"{text} {load.seed}") for text in queries
        )
        planned.append(load.label_posts(posts, turn=0))
        if requests.publish is not None:
            last = load.seconds + _PUBLISH_SECONDS
            times = list(np.arange(_PUBLISH_SECONDS, last, _PUBLISH_SECONDS))
            published = [requests.publish] * len(times)
            planned.append(Stream(name=PUBLISH, requests=published, starts=times))
    return planned

"""`python -m loadtests.overload`: several times the load that a server can answer.

Measures saturation in a closed loop, then offers a multiple of it in an open loop: single queries;
requests of 64 queries; 500 idle connections in addition; clients that disconnect before an answer.
The client runs on the server's cores. Writes overload.json and overload.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import numpy as np

from loadtests.harness import Scenario, option, say
from loadtests.loops import ANSWERED, LEFT, NAMES, REFUSED, Fate, Plan, Stream, poisson_starts, send
from loadtests.report import Row
from loadtests.resources import with_cpu_time
from loadtests.traffic import (
    Health,
    Summary,
    best,
    measure_saturation,
    probing,
    requests_of,
    saturation_row,
)
from service.child_server import Server

GOODPUT = 0.85  # share of the saturation that is still answered
REFUSED_MS = 20.0  # median time of a refusal
READY_MS = 100.0  # slowest answer of /health/ready
RECOVERY_SECONDS = 2.0
RECOVERY_SHARE = 0.4  # share of the saturation, offered after the overload
USEFUL_SECONDS = 0.05  # a later answer is of no use to the client


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A kind of overload: queries per request, idle connections, share of impatient clients."""

    name: str
    queries: int = 1
    idle: int = 0
    leaving: float = 0.0


SINGLE = Variant(name="single queries")
VARIANTS = (
    SINGLE,
    Variant(name="64 queries a request", queries=64),
    Variant(name="500 idle connections", idle=500),
    Variant(name="half of the clients leave after 20 ms", leaving=0.5),
)
WARM_UP_SHARE = 1 / 3  # of the time in which saturation is measured


@dataclass(frozen=True, kw_only=True)
class Overload(Scenario):
    """One server and multiples of its saturation, for each kind of overload."""

    title = "Overload"

    seconds: float = option("Seconds of each overload by single queries.", 60.0)
    variant_seconds: float = option("Seconds of each other overload.", 20.0)
    saturation_seconds: float = option(
        "Seconds in which saturation is measured, for each size of requests.", 12.0
    )
    recovery_seconds: float = option(
        "Seconds of lower load after each overload, which the server can answer.", 5.0
    )
    factors: tuple[float, ...] = option("Multiples of the saturation to offer.", (4, 10))

    def rows(self) -> Iterator[Row]:
        """Measure the saturation of each size of requests, and each multiple of it."""
        texts = self.texts()
        saturation: dict[int, float] = {}  # queries per request -> requests per second
        with self.server() as server:
            measure_saturation(server, texts, seconds=WARM_UP_SHARE * self.saturation_seconds)
            for variant in VARIANTS:
                queries = variant.queries
                if queries not in saturation:
                    say(f"saturation, {variant.name} ...")
                    levels = measure_saturation(
                        server, texts, queries=queries, seconds=self.saturation_seconds
                    )
                    saturation[queries] = best(levels).per_second
                    what = f"saturation, {variant.name}"
                    yield saturation_row(levels, what=what, goal=None)
                for factor in self.factors:
                    say(f"{factor:g}x, {variant.name} ...")
                    run = self._overload(server, texts, variant, saturation[queries], factor)
                    yield from overload_rows(variant, factor, run, saturation=saturation[queries])

    def _overload(
        self, server: Server, texts: Iterator[str], variant: Variant, most: float, factor: float
    ) -> Overloaded:
        """Offer `factor` times the most requests per second, then less than half of them."""
        seconds = self.seconds if variant is SINGLE else self.variant_seconds
        rate = factor * most
        during = _starts(rate, seconds, self.seed)
        after = seconds + _starts(RECOVERY_SHARE * most, self.recovery_seconds, self.seed + 1)
        starts = np.concatenate([during, after])
        requests = requests_of(texts, queries=variant.queries, count=len(starts))
        stream = Stream(requests=requests, starts=starts)
        plan = Plan(streams=[stream], idle=variant.idle, leaving=variant.leaving, coarse=True)
        with probing(server) as health:
            fate, cpu = with_cpu_time(server.pid, lambda: send(server.port, plan))
        return Overloaded(rate=rate, seconds=seconds, fate=fate, health=health, server_cpu=cpu)


@dataclass(frozen=True, kw_only=True)
class Overloaded:
    """One run: `seconds` of overload at `rate` requests per second, then the recovery."""

    rate: float
    seconds: float
    fate: Fate
    health: Health
    server_cpu: float  # CPU seconds of the server over the whole run

    def latencies(self, status: int) -> list[float]:
        """Seconds of the answers with one status to requests that were due during the overload."""
        fate = self.fate
        return fate.seconds[(fate.status == status) & (fate.starts < self.seconds)].tolist()

    @property
    def recovery(self) -> float | None:
        """Seconds after the overload until 99 % of later answers are in time; None: never."""
        after = self.fate.starts >= self.seconds
        starts = self.fate.starts[after] - self.seconds
        useful = (self.fate.status == 200) & (self.fate.seconds <= USEFUL_SECONDS)
        late = np.cumsum(~useful[after][::-1])[::-1]  # late answers from here on
        rest = np.arange(len(starts), 0, -1)
        recovered = np.flatnonzero(late <= 0.01 * rest)
        return float(starts[recovered[0]]) if len(recovered) else None


def _starts(rate: float, seconds: float, seed: int) -> np.ndarray:
    starts = poisson_starts(rate=rate, seconds=seconds, seed=seed)
    return np.minimum(starts, np.nextafter(seconds, 0))


def overload_rows(
    variant: Variant, factor: float, run: Overloaded, *, saturation: float
) -> Iterator[Row]:
    """Yield the rows of one run: answers, refusals, health and recovery, CPU time."""
    what = f"{factor:g}x saturation, {variant.name}"
    fate, health, recovery = run.fate, run.health, run.recovery
    answered, refused = Summary.of(run.latencies(200)), Summary.of(run.latencies(429))
    probes = Summary.of(health.seconds)
    per_second = answered.count / run.seconds
    share = per_second / saturation
    yield Row(
        what=f"{what}: answered ({run.rate:.0f}/s offered)",
        goal=f">= {GOODPUT:.0%} of saturation, p99 <= {1000 * USEFUL_SECONDS:g} ms",
        measured=f"{per_second:.0f}/s = {share:.0%}; {answered}",
        met=share >= GOODPUT and answered.p99 <= 1000 * USEFUL_SECONDS,
        figures={"per_second": per_second, "share": share, **asdict(answered)},
    )
    statuses = Counter(fate.status.tolist())
    counts = {NAMES.get(status, str(status)): count for status, count in sorted(statuses.items())}
    yield Row(
        what=f"{what}: refused",
        goal=f"429 with a median of <= {REFUSED_MS:g} ms, nothing else",
        measured=f"{refused}; {counts}",
        met=refused.p50 <= REFUSED_MS and statuses.keys() <= {LEFT, ANSWERED, REFUSED},
        figures={**asdict(refused), "statuses": counts, "idle_connections_lost": fate.idle_lost},
    )
    back = "never" if recovery is None else f"after {recovery:.1f} s"
    recovered = recovery is not None and recovery <= RECOVERY_SECONDS
    failed = f", FAILED {health.failures}" if health.failures else ""
    yield Row(
        what=f"{what}: /health/ready, and recovery",
        goal=f"200 within {READY_MS:g} ms, recovered after {RECOVERY_SECONDS:g} s",
        measured=f"{probes}{failed}; recovered {back}",
        met=not health.failures and probes.maximum <= READY_MS and recovered,
        figures={**asdict(probes), "failures": health.failures, "recovery_seconds": recovery},
    )
    server, client, count = run.server_cpu, fate.cpu, len(fate.status)
    yield Row(
        what=f"{what}: CPU time",
        measured=f"server {1000 * server / max(1, statuses[200]):.2f} ms an answer, refusals"
        f" included; client {1e6 * client / count:.0f} us a request",
        figures={"server_seconds": server, "client_seconds": client, "requests": count},
    )


if __name__ == "__main__":
    Overload.command()

"""`python -m loadtests.overload`: several times the load that a server can answer.

Measures saturation in a closed loop, then offers a multiple of it in an open loop: single queries;
requests of 64 queries; 500 idle connections in addition; clients that disconnect before an answer.
The client runs on the server's cores. Writes overload.json and overload.md.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from cyclopts import App

from loadtests.clients.flood import BROKEN, LEFT, UNANSWERED, Fate, Flood, flood
from loadtests.clients.open_loop import poisson_starts
from loadtests.queries import distinct, read_queries
from loadtests.report import Report, Row
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
from service.child_server import Server, running_server
from service.command_line import open_console, run

GOODPUT = 0.85  # share of the saturation that is still answered
REFUSED_MS = 20.0  # median time of a refusal
READY_MS = 100.0  # slowest answer of /health/ready
RECOVERY_SECONDS = 2.0
RECOVERY_SHARE = 0.4  # share of the saturation, offered after the overload
USEFUL_SECONDS = 0.05  # a later answer is of no use to the client
_NAMES = {UNANSWERED: "unanswered", BROKEN: "broken", LEFT: "left", 200: "200", 429: "429"}
_EXPECTED = {LEFT, 200, 429}


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

app = App(name="loadtests.overload", help=__doc__)


@app.default
def overload(
    *,
    bundle: Path,
    out: Path,
    seconds: float = 60.0,
    variant_seconds: float = 20.0,
    saturation_seconds: float = 12.0,
    recovery_seconds: float = 5.0,
    factors: Sequence[float] = (4.0, 10.0),
    seed: int = 0,
) -> int:
    """Measure and report.

    Parameters
    ----------
    bundle
        The bundle's folder; its instance and label texts are the queries.
    out
        Folder for overload.json and overload.md.
    seconds
        Seconds of each overload by single queries.
    variant_seconds
        Seconds of each other overload.
    saturation_seconds
        Seconds in which saturation is measured, for each size of requests.
    recovery_seconds
        Seconds of lower load after each overload, which the server can answer.
    factors
        Multiples of the saturation to offer.
    seed
        Draws queries and arrivals.
    """
    console, rows = open_console(stderr=True), list[Row]()
    texts = distinct(read_queries(bundle), seed=seed)
    saturation: dict[int, float] = {}  # queries per request -> requests per second
    with running_server(bundle, options=["--no-access-log"]) as server:
        measure_saturation(server, texts, seconds=WARM_UP_SHARE * saturation_seconds)
        for variant in VARIANTS:
            queries = variant.queries
            if queries not in saturation:
                console.print(f"saturation, {variant.name} ...")
                levels = measure_saturation(
                    server, texts, queries=queries, seconds=saturation_seconds
                )
                saturation[queries] = best(levels).per_second
                rows.append(saturation_row(levels, what=f"saturation, {variant.name}", goal=None))
            for factor in factors:
                console.print(f"{factor:g}x, {variant.name} ...")
                measured = measure_overload(
                    server,
                    texts,
                    variant,
                    saturation=saturation[queries],
                    factor=factor,
                    seconds=seconds if variant is SINGLE else variant_seconds,
                    recovery_seconds=recovery_seconds,
                    seed=seed,
                )
                rows += overload_rows(variant, factor, measured, saturation=saturation[queries])
    Report(
        title="Overload",
        settings={"seconds": seconds, "variant_seconds": variant_seconds, "bundle": bundle.name},
        rows=rows,
    ).publish(out, "overload")
    return 0


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


def measure_overload(
    server: Server,
    texts: Iterator[str],
    variant: Variant,
    *,
    saturation: float,
    factor: float,
    seconds: float,
    recovery_seconds: float,
    seed: int,
) -> Overloaded:
    """Offer `factor` times the saturation (requests per second), then less than half of it."""
    rate = factor * saturation
    during = _starts(rate, seconds, seed)
    after = seconds + _starts(RECOVERY_SHARE * saturation, recovery_seconds, seed + 1)
    plan = Flood(
        requests=requests_of(texts, queries=variant.queries, count=len(during) + len(after)),
        starts=np.concatenate([during, after]),
        idle=variant.idle,
        leaving=variant.leaving,
    )
    with probing(server) as health:
        fate, cpu = with_cpu_time(server.pid, lambda: flood(server.port, plan))
    return Overloaded(rate=rate, seconds=seconds, fate=fate, health=health, server_cpu=cpu)


def _starts(rate: float, seconds: float, seed: int) -> np.ndarray:
    starts = poisson_starts(rate=rate, seconds=seconds, seed=seed)
    return np.minimum(np.array(starts), np.nextafter(seconds, 0))


def overload_rows(
    variant: Variant, factor: float, run: Overloaded, *, saturation: float
) -> Iterator[Row]:
    """Yield the rows of one run: answers, refusals, health and recovery, CPU time."""
    what = f"{factor:g}x saturation, {variant.name}"
    yield _answered(what, run, saturation)
    yield _refused(what, run)
    yield _health(what, run)
    yield _cpu_time(what, run)


def _answered(what: str, run: Overloaded, saturation: float) -> Row:
    latency = Summary.of(run.latencies(200))
    per_second = latency.count / run.seconds
    share = per_second / saturation
    return Row(
        what=f"{what}: answered ({run.rate:.0f}/s offered)",
        goal=f">= {GOODPUT:.0%} of saturation, p99 <= {1000 * USEFUL_SECONDS:g} ms",
        measured=f"{per_second:.0f}/s = {share:.0%}; {latency}",
        met=share >= GOODPUT and latency.p99 <= 1000 * USEFUL_SECONDS,
        figures={"per_second": per_second, "share": share, **asdict(latency)},
    )


def _refused(what: str, run: Overloaded) -> Row:
    latency = Summary.of(run.latencies(429))
    statuses = Counter(run.fate.status.tolist())
    counts = {_NAMES.get(status, str(status)): count for status, count in sorted(statuses.items())}
    return Row(
        what=f"{what}: refused",
        goal=f"429 with a median of <= {REFUSED_MS:g} ms, nothing else",
        measured=f"{latency}; {counts}",
        met=latency.p50 <= REFUSED_MS and statuses.keys() <= _EXPECTED,
        figures={
            **asdict(latency),
            "statuses": counts,
            "idle_connections_lost": run.fate.idle_lost,
        },
    )


def _health(what: str, run: Overloaded) -> Row:
    latency, failures, recovery = Summary.of(run.health.seconds), run.health.failures, run.recovery
    back = "never" if recovery is None else f"after {recovery:.1f} s"
    return Row(
        what=f"{what}: /health/ready, and recovery",
        goal=f"200 within {READY_MS:g} ms, recovered after {RECOVERY_SECONDS:g} s",
        measured=f"{latency}{f', FAILED {failures}' if failures else ''}; recovered {back}",
        met=not failures
        and latency.maximum <= READY_MS
        and recovery is not None
        and recovery <= RECOVERY_SECONDS,
        figures={**asdict(latency), "failures": failures, "recovery_seconds": recovery},
    )


def _cpu_time(what: str, run: Overloaded) -> Row:
    count = len(run.fate.status)
    answered = int(np.count_nonzero(run.fate.status == 200))
    server, client = run.server_cpu, run.fate.cpu
    return Row(
        what=f"{what}: CPU time",
        goal="-",
        measured=f"server {1000 * server / max(1, answered):.2f} ms an answer, refusals included;"
        f" client {1e6 * client / count:.0f} us a request",
        figures={"server_seconds": server, "client_seconds": client, "requests": count},
    )


if __name__ == "__main__":
    sys.exit(run(app))

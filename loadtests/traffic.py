"""Traffic in an open or a closed loop, its figures, and a probe that checks readiness meanwhile.

Each function takes a running server and an endless iterator of query texts.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import count, islice
from math import inf, nan
from time import perf_counter
from typing import Any

import numpy as np

from loadtests.connection import Connection, RequestFailed, get, post, predict, with_key
from loadtests.loops import ANSWERED, REFUSED, Outcome, Plan, Stream, drive, poisson_starts, send
from loadtests.report import Row, failures_text
from loadtests.resources import with_cpu_time
from service.child_server import Server

PREDICT, LABELS = "predict", "labels"  # names of the streams
WARM_UP_SECONDS = 4.0
_PROBE_SECONDS = 0.05
CONNECTIONS = (2, 4, 8, 16)  # tried one after the other
_MOST_PER_SECOND = 5_000  # prepared requests: more than a server answers per second
_DISTINCT_QUERIES = 20_000  # prepared at the start, then repeated
REQUESTS_PER_SECOND = 450.0


@dataclass(frozen=True, kw_only=True)
class Load:
    """`rate` predictions and `label_rate` labels per second; `seed` draws the arrivals."""

    rate: float = 0.0
    label_rate: float = 0.0
    labels_per_request: int = 1
    seconds: float
    seed: int = 0

    def predictions(self, queries: Iterator[str], *, turn: int = 0, key: str = "") -> Stream:
        """Return predictions as independent users send them; each turn draws new arrivals."""
        starts = poisson_starts(rate=self.rate, seconds=self.seconds, seed=self.seed + turn)
        requests = [with_key(predict(query), key) for query in islice(queries, len(starts))]
        return Stream(name=PREDICT, requests=requests, starts=starts)

    def labels(self, texts: Iterator[str], *, prefix: str, turn: int = 0) -> Stream:
        """Return posts of new labels, whose ids begin with `prefix`."""
        size, labels = self.labels_per_request, new_labels(texts, f"{prefix}-{turn}")
        seed = self.seed + 1_000 + turn
        starts = poisson_starts(rate=self.label_rate / size, seconds=self.seconds, seed=seed)
        requests = [post("/labels", {"labels": list(islice(labels, size))}) for _ in starts]
        return Stream(name=LABELS, requests=requests, starts=starts)


def new_labels(texts: Iterator[str], prefix: str) -> Iterator[dict[str, Any]]:
    """Yield labels without end, each with a new id and the next two of `texts` joined."""
    for number in count():
        yield {"id": f"{prefix}-{number}", "text": f"{next(texts)} {next(texts)}"}


def measure_mixed(
    server: Server, texts: Iterator[str], load: Load, *, turn: int = 0
) -> Mapping[str, Outcome]:
    """Send predictions in an open loop, and labels if the load has any."""
    streams = [load.predictions(texts, turn=turn)]
    if load.label_rate:
        streams.append(load.labels(texts, prefix="mixed", turn=turn))
    return drive(server.port, streams)


def measure_predictions(
    server: Server, queries: Iterator[str], load: Load, *, turn: int = 0
) -> Outcome:
    """Send predictions in an open loop."""
    return measure_mixed(server, queries, load, turn=turn)[PREDICT]


def warm_up(
    server: Server, queries: Iterator[str], *, seconds: float = WARM_UP_SECONDS, key: str = ""
) -> None:
    """Load the memory-mapped pages, so that the first measurement does not measure the disk."""
    load = Load(rate=50, seconds=min(WARM_UP_SECONDS, seconds))
    drive(server.port, [load.predictions(queries, key=key)])


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Percentiles in milliseconds over `count` requests; NaN, which meets no goal, over none."""

    count: int
    p50: float
    p99: float
    p999: float
    maximum: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Summary:
        """Summarize latencies given in seconds."""
        shares = (0.5, 0.99, 0.999, 1.0)
        values = np.quantile(seconds, shares) if len(seconds) else (nan,) * len(shares)
        p50, p99, p999, maximum = (1000 * float(value) for value in values)
        return cls(count=len(seconds), p50=p50, p99=p99, p999=p999, maximum=maximum)

    def __str__(self) -> str:
        """Return the text for a table cell."""
        if not self.count:
            return "no answer"
        return (
            f"p50 {self.p50:.2f} ms, p99 {self.p99:.2f} ms, p99.9 {self.p999:.2f} ms,"
            f" max {self.maximum:.1f} ms ({self.count:,} requests)"
        )


def latency_row(what: str, outcome: Outcome, *, p50: float = inf, p99: float = inf) -> Row:
    """Return the row for latencies whose goals are percentiles in milliseconds and no failure.

    Without a goal the row is not judged.
    """
    latency = Summary.of(outcome.latencies)
    goals = {"p50": p50, "p99": p99}
    said = [f"{name} <= {most:g} ms" for name, most in goals.items() if most < inf]
    return Row(
        what=what,
        goal=", ".join(said) or "-",
        measured=f"{latency}{failures_text(outcome.failures)}",
        met=latency.p50 <= p50 and latency.p99 <= p99 and not outcome.failures if said else None,
        figures={
            **asdict(latency),
            "failures": outcome.failures,
            "client_started_late": Summary.of(outcome.late),
        },
    )


@dataclass(frozen=True, kw_only=True)
class Health:
    """Answers of /health/ready during a load."""

    seconds: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


@contextmanager
def repeated(work: Callable[[], None], *, seconds: float) -> Iterator[None]:
    """Call `work` every some seconds in a thread during the block."""
    ended = threading.Event()

    def keep_working() -> None:
        while not ended.wait(seconds):
            work()

    thread = threading.Thread(target=keep_working, name=work.__name__)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextmanager
def probing(server: Server) -> Iterator[Health]:
    """Keep requesting /health/ready during the block, on one connection."""
    health, connection = Health(), Connection(server.port)

    def probe() -> None:
        start = perf_counter()
        try:
            status, _ = connection.ask(get("/health/ready"))
        except (OSError, RequestFailed) as error:
            health.failures.append(type(error).__name__)
            connection.reopen()
            return
        health.seconds.append(perf_counter() - start)
        if status != 200:
            health.failures.append(str(status))

    with connection, repeated(probe, seconds=_PROBE_SECONDS):
        yield health


# Saturation: the most requests per second that a server answers in a closed loop ----------------


@dataclass(frozen=True, kw_only=True)
class Level:
    """A server's answers while each of `connections` connections always had an open request.

    `failed` requests got neither an answer nor a refusal; `cpu` is the CPU time of the server, in
    seconds.
    """

    connections: int
    queries: int  # per request
    seconds: float
    answered: int  # number of answered requests
    failed: int
    cpu: float

    @property
    def per_second(self) -> float:
        """Answered requests per second."""
        return self.answered / self.seconds

    @property
    def query_cpu_ms(self) -> float:
        """Milliseconds of the server's CPU time per answered query."""
        return 1000 * self.cpu / max(1, self.answered * self.queries)


def measure_saturation(
    server: Server,
    texts: Iterator[str],
    *,
    queries: int = 1,
    seconds: float,
    levels_of: Sequence[int] = CONNECTIONS,
) -> list[Level]:
    """Try each number of connections in `levels_of` for an equal share of the time."""
    levels = []
    share = seconds / len(levels_of)
    most = int(_MOST_PER_SECOND * share)
    for connections in levels_of:
        requests = requests_of(texts, queries=queries, count=most)
        stream = Stream(requests=requests, starts=np.zeros(most))
        plan = Plan(streams=[stream], until=share, connections=connections)
        fate, cpu = with_cpu_time(server.pid, partial(send, server.port, plan))
        answered, refused = (int(np.sum(fate.status == one)) for one in (ANSWERED, REFUSED))
        levels.append(
            Level(
                connections=connections,
                queries=queries,
                seconds=share,
                answered=answered,
                failed=len(fate.status) - answered - refused,
                cpu=cpu,
            )
        )
    return levels


def best(levels: list[Level]) -> Level:
    """Return the level with the most answers per second."""
    return max(levels, key=lambda level: level.per_second)


def requests_of(texts: Iterator[str], *, queries: int, count: int) -> list[bytes]:
    """Return `count` predictions of `queries` queries each, or fewer if they are to be repeated."""
    return [
        post("/predict", {"queries": list(islice(texts, queries))})
        for _ in range(min(count, _DISTINCT_QUERIES // queries))
    ]


def saturation_row(
    levels: list[Level],
    *,
    what: str = "saturation, closed loop, distinct queries",
    goal: float | None = REQUESTS_PER_SECOND,
) -> Row:
    """Return the row of the best number of connections; without a `goal` it is not judged."""
    most = best(levels)
    failed = {f"{level.connections} connections": level.failed for level in levels if level.failed}
    return Row.bounded(
        what,
        most.per_second,
        least=goal,
        unit=" requests/s",
        measured=f"{most.per_second:.0f} requests/s on {most.connections} connections;"
        f" {most.query_cpu_ms:.2f} ms of the server's CPU time a query"
        f"{failures_text(failed)}",
        sound=not failed,
        figures={
            "per_second": most.per_second,
            "cpu_ms": most.query_cpu_ms,
            "per_second_by_connections": {
                str(level.connections): round(level.per_second, 1) for level in levels
            },
            "failures": failed,
        },
    )

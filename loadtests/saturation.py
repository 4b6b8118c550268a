"""Saturation: the most requests per second that a server answers in a closed loop."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice

import numpy as np

from loadtests.clients.connection import post
from loadtests.clients.flood import Flood, flood
from loadtests.report import Row, failures_text
from loadtests.resources import with_cpu_time
from service.child_server import Server

CONNECTIONS = (2, 4, 8, 16)  # tried one after the other
_MOST_PER_SECOND = 5_000  # prepared requests: more than a server answers per second
_DISTINCT_QUERIES = 20_000  # prepared at the start, then repeated
_ANSWERED, _REFUSED = 200, 429
REQUESTS_PER_SECOND = 450.0


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
    count = int(_MOST_PER_SECOND * share)
    for connections in levels_of:
        requests = requests_of(texts, queries=queries, count=count)
        plan = Flood(
            requests=requests, starts=np.zeros(count), until=share, connections=connections
        )
        fate, cpu = with_cpu_time(server.pid, partial(flood, server.port, plan))
        answered = int(np.count_nonzero(fate.status == _ANSWERED))
        refused = int(np.count_nonzero(fate.status == _REFUSED))
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
    return Row(
        what=what,
        goal="-" if goal is None else f">= {goal:g} requests/s",
        measured=f"{most.per_second:.0f} requests/s on {most.connections} connections;"
        f" {most.query_cpu_ms:.2f} ms of the server's CPU time a query"
        f"{failures_text(failed)}",
        met=None if goal is None else most.per_second >= goal and not failed,
        figures={
            "per_second": most.per_second,
            "cpu_ms": most.query_cpu_ms,
            "per_second_by_connections": {
                str(level.connections): round(level.per_second, 1) for level in levels
            },
            "failures": failed,
        },
    )

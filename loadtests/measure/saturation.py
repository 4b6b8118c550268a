"""Saturation: the most requests that a server answers in a second, in a closed loop."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice

import numpy as np

from loadtests.clients.connection import post
from loadtests.clients.flood import Flood, flood
from loadtests.measure.processor_time import with_processor_time
from training.experiments.service_process import Server

CONNECTIONS = (2, 4, 8, 16)  # tried one after the other
_MOST_PER_SECOND = 5_000  # more requests than a server answers: a closed loop never runs out
_DISTINCT_QUERIES = 20_000  # prepared at once; then the same again
_ANSWERED, _REFUSED = 200, 429


@dataclass(frozen=True, kw_only=True)
class Level:
    """What a server did while so many connections were never without a request.

    `failed` requests got neither an answer nor a refusal; `processor` is the processor time of the
    server, in seconds.
    """

    connections: int
    queries: int  # of each request
    seconds: float
    answered: int  # requests
    failed: int
    processor: float

    @property
    def per_second(self) -> float:
        """Answered requests a second."""
        return self.answered / self.seconds

    @property
    def query_processor_ms(self) -> float:
        """Milliseconds of the server's processor time for each answered query."""
        return 1000 * self.processor / max(1, self.answered * self.queries)


def measure_saturation(
    server: Server,
    texts: Iterator[str],
    *,
    queries: int = 1,
    seconds: float,
    levels_of: Sequence[int] = CONNECTIONS,
) -> list[Level]:
    """Each of `levels_of` connections for an equal share of the time, with so many queries each."""
    levels = []
    share = seconds / len(levels_of)
    count = int(_MOST_PER_SECOND * share)
    for connections in levels_of:
        requests = requests_of(texts, queries=queries, count=count)
        plan = Flood(
            requests=requests, starts=np.zeros(count), until=share, connections=connections
        )
        fate, processor = with_processor_time(server.pid, partial(flood, server.port, plan))
        answered = int(np.count_nonzero(fate.status == _ANSWERED))
        refused = int(np.count_nonzero(fate.status == _REFUSED))
        levels.append(
            Level(
                connections=connections,
                queries=queries,
                seconds=share,
                answered=answered,
                failed=len(fate.status) - answered - refused,
                processor=processor,
            )
        )
    return levels


def best(levels: list[Level]) -> Level:
    """The level with the most answers a second."""
    return max(levels, key=lambda level: level.per_second)


def requests_of(texts: Iterator[str], *, queries: int, count: int) -> list[bytes]:
    """Predictions of so many queries each: `count`, or fewer that are sent again and again."""
    return [
        post("/predict", {"queries": list(islice(texts, queries))})
        for _ in range(min(count, _DISTINCT_QUERIES // queries))
    ]

"""Reading traffic: predictions in an open loop, and what the service adds to an answer.

Each function takes a running server and an endless iterator of query texts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from time import perf_counter

import numpy as np

from loadtests.clients.connection import Connection, predict, require
from loadtests.clients.open_loop import Outcome, Stream, drive, poisson_starts
from loadtests.measure.bare_predictor import BarePredictor
from training.experiments.service_process import Server

PREDICT, LABELS = "predict", "labels"  # names of the streams
_BLOCK_QUERIES = 25  # answered by one side of the paired comparison before the other answers them


@dataclass(frozen=True, kw_only=True)
class Load:
    """How much traffic is sent.

    `rate` predictions and `label_rate` labels a second, for `seconds`; `seed` draws the arrivals.
    """

    rate: float
    label_rate: float
    seconds: float
    seed: int

    def predictions(self, queries: Iterator[str], *, seconds: float, turn: int) -> Stream:
        """Predictions that arrive as independent users send them; each turn draws new arrivals."""
        starts = poisson_starts(rate=self.rate, seconds=seconds, seed=self.seed + turn)
        requests = [predict(query) for query in islice(queries, len(starts))]
        return Stream(name=PREDICT, requests=requests, starts=starts)

    def label_posts(
        self,
        requests_for: Callable[[int], Sequence[bytes]],
        *,
        seconds: float,
        turn: int,
        labels_per_request: int = 1,
    ) -> Stream:
        """Labels that arrive at `label_rate`; `requests_for(count)` builds that many requests."""
        starts = poisson_starts(
            rate=self.label_rate / labels_per_request,
            seconds=seconds,
            seed=self.seed + 1_000 + turn,
        )
        return Stream(name=LABELS, requests=requests_for(len(starts)), starts=starts)


def measure_predictions(server: Server, queries: Iterator[str], load: Load) -> Outcome:
    """Send predictions in an open loop."""
    stream = load.predictions(queries, seconds=load.seconds, turn=0)
    return drive(server.port, [stream])[PREDICT]


def warm_up(server: Server, queries: Iterator[str], *, seconds: float) -> None:
    """Touch the memory-mapped pages, so that the first measurement does not measure the disk."""
    measure_predictions(server, queries, Load(rate=50, label_rate=0, seconds=seconds, seed=0))


@dataclass(frozen=True, kw_only=True)
class Overhead:
    """Seconds of the same queries over HTTP and without it, and the timing that answers report."""

    http: list[float]
    bare: list[float]
    stages: dict[str, float]  # median milliseconds of each stage that an answer reports

    @property
    def at_median(self) -> float:
        """Milliseconds that the service adds at the median."""
        return float(np.median(self.http) - np.median(self.bare)) * 1000


def measure_overhead(
    server: Server, bare: BarePredictor, queries: Iterator[str], load: Load
) -> Overhead:
    """Answer blocks of the same queries with and without the service.

    The side that goes first alternates with the blocks.
    """
    http_seconds: list[float] = []
    bare_seconds: list[float] = []
    stages: dict[str, list[float]] = {}
    connection = Connection(server.port)
    deadline = perf_counter() + load.seconds
    http_first = True
    while perf_counter() < deadline:
        block = list(islice(queries, _BLOCK_QUERIES))
        for over_http in (http_first, not http_first):
            if over_http:
                http_seconds += _http_seconds(connection, block, stages)
            else:
                bare_seconds += [bare.seconds(query) for query in block]
        http_first = not http_first
    connection.close()
    medians = {stage: float(np.median(values)) for stage, values in stages.items()}
    return Overhead(http=http_seconds, bare=bare_seconds, stages=medians)


def _http_seconds(
    connection: Connection, queries: Sequence[str], stages: dict[str, list[float]]
) -> list[float]:
    """Seconds of each query over one connection; adds each answer's timing to `stages`."""
    seconds = []
    for query in queries:
        request = predict(query)
        start = perf_counter()
        answer = connection.ask(request)
        seconds.append(perf_counter() - start)
        for stage, milliseconds in require(answer)["timing_ms"].items():
            stages.setdefault(stage, []).append(milliseconds)
    return seconds

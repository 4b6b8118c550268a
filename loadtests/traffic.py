"""Predictions in an open loop, their latencies, and a probe that checks readiness meanwhile.

Each function takes a running server and an endless iterator of query texts.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import islice
from time import perf_counter

import numpy as np

from loadtests.clients.connection import Connection, RequestFailed, get, predict
from loadtests.clients.open_loop import Outcome, Stream, drive, poisson_starts
from service.child_server import Server

PREDICT, LABELS = "predict", "labels"  # names of the streams
_PROBE_SECONDS = 0.05


@dataclass(frozen=True, kw_only=True)
class Load:
    """`rate` predictions and `label_rate` labels per second; `seed` draws the arrivals."""

    rate: float
    label_rate: float
    seconds: float
    seed: int

    def predictions(self, queries: Iterator[str], *, turn: int) -> Stream:
        """Return predictions as independent users send them; each turn draws new arrivals."""
        starts = poisson_starts(rate=self.rate, seconds=self.seconds, seed=self.seed + turn)
        requests = [predict(query) for query in islice(queries, len(starts))]
        return Stream(name=PREDICT, requests=requests, starts=starts)

    def label_posts(
        self, requests: Iterator[bytes], *, turn: int, labels_per_request: int = 1
    ) -> Stream:
        """Return posts of labels that arrive at `label_rate`, taken from endless `requests`."""
        rate, seed = self.label_rate / labels_per_request, self.seed + 1_000 + turn
        starts = poisson_starts(rate=rate, seconds=self.seconds, seed=seed)
        return Stream(name=LABELS, requests=list(islice(requests, len(starts))), starts=starts)


def measure_predictions(server: Server, queries: Iterator[str], load: Load) -> Outcome:
    """Send predictions in an open loop."""
    stream = load.predictions(queries, turn=0)
    return drive(server.port, [stream])[PREDICT]


def warm_up(server: Server, queries: Iterator[str], *, seconds: float) -> None:
    """Load the memory-mapped pages, so that the first measurement does not measure the disk."""
    measure_predictions(server, queries, Load(rate=50, label_rate=0, seconds=seconds, seed=0))


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Percentiles in milliseconds over `count` requests."""

    count: int
    p50: float
    p99: float
    p999: float
    maximum: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Summary:
        """Summarize latencies given in seconds; `ValueError` if there are none."""
        if len(seconds) == 0:
            raise ValueError("no request was answered, so there is no latency to summarize")
        p50, p99, p999 = np.percentile(seconds, [50, 99, 99.9]) * 1000
        return cls(
            count=len(seconds),
            p50=float(p50),
            p99=float(p99),
            p999=float(p999),
            maximum=max(seconds) * 1000,
        )

    def __str__(self) -> str:
        """Return the text for a table cell."""
        return (
            f"p50 {self.p50:.2f} ms, p99 {self.p99:.2f} ms, p99.9 {self.p999:.2f} ms,"
            f" max {self.maximum:.1f} ms ({self.count:,} requests)"
        )

    def as_document(self) -> dict[str, float]:
        """Return the figures for JSON."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Health:
    """Answers of /health/ready during a load."""

    seconds: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


@contextmanager
def probing(server: Server) -> Iterator[Health]:
    """Keep requesting /health/ready during the block, on one connection."""
    health, ended = Health(), threading.Event()

    def probe() -> None:
        connection = Connection(server.port)
        while not ended.wait(_PROBE_SECONDS):
            start = perf_counter()
            try:
                status, _ = connection.ask(get("/health/ready"))
            except (OSError, RequestFailed) as error:
                health.failures.append(type(error).__name__)
                connection.close()
                connection = Connection(server.port)
                continue
            health.seconds.append(perf_counter() - start)
            if status != 200:
                health.failures.append(str(status))
        connection.close()

    thread = threading.Thread(target=probe, name="probe")
    thread.start()
    try:
        yield health
    finally:
        ended.set()
        thread.join()

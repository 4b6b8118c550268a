"""What a server does under several times the load that it can answer, and after it."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter

import numpy as np

from loadtests.clients.connection import Connection, RequestFailed, get
from loadtests.clients.flood import Fate, Flood, flood
from loadtests.clients.open_loop import poisson_starts
from loadtests.measure.processor_time import with_processor_time
from loadtests.measure.saturation import requests_of
from training.experiments.service_process import Server

RECOVERY_SHARE = 0.4  # of saturation, offered after the overload
USEFUL_SECONDS = 0.05  # an answer that takes longer is of no use
_PROBE_SECONDS = 0.05


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A kind of overload: queries a request, idle connections, the share of impatient clients."""

    name: str
    queries: int = 1
    idle: int = 0
    leaving: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Health:
    """Answers of /health/ready while a load lasted."""

    seconds: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Overloaded:
    """One run: `seconds` of overload at `rate` requests a second, then the recovery."""

    rate: float
    seconds: float
    fate: Fate
    health: Health
    server_processor: float  # seconds, of the whole run

    @property
    def answered_per_second(self) -> float:
        """Requests a second that were due during the overload and answered with 200."""
        good = (self.fate.status == 200) & (self.fate.starts < self.seconds)
        return float(np.count_nonzero(good)) / self.seconds

    def overload_latencies(self, status: int) -> np.ndarray:
        """Seconds of the answers of one status to requests that were due during the overload."""
        fate = self.fate
        return fate.seconds[(fate.status == status) & (fate.starts < self.seconds)]

    @property
    def recovery(self) -> float | None:
        """Seconds after the overload from which 99 % are answered in useful time; None: never."""
        after = self.fate.starts >= self.seconds
        starts = self.fate.starts[after] - self.seconds
        useful = (self.fate.status == 200) & (self.fate.seconds <= USEFUL_SECONDS)
        late = np.cumsum(~useful[after][::-1])[::-1]  # of this and all later requests
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
    """Offer `factor` times the saturation (requests a second), then less than the half of it."""
    rate = factor * saturation
    starts = np.concatenate(
        [
            _starts(rate, seconds, seed),
            seconds + _starts(RECOVERY_SHARE * saturation, recovery_seconds, seed + 1),
        ]
    )
    plan = Flood(
        requests=requests_of(texts, queries=variant.queries, count=len(starts)),
        starts=starts,
        idle=variant.idle,
        leaving=variant.leaving,
    )
    with probing(server) as health:
        fate, processor = with_processor_time(server.pid, lambda: flood(server.port, plan))
    return Overloaded(
        rate=rate,
        seconds=seconds,
        fate=fate,
        health=health,
        server_processor=processor,
    )


@contextmanager
def probing(server: Server) -> Iterator[Health]:
    """Ask for /health/ready all the while, on one connection."""
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


def statuses(fate: Fate) -> dict[int, int]:
    """How many requests ended with each status."""
    found, counts = np.unique(fate.status, return_counts=True)
    return dict(zip(found.tolist(), counts.tolist(), strict=True))


def _starts(rate: float, seconds: float, seed: int) -> np.ndarray:
    starts: Sequence[float] = poisson_starts(rate=rate, seconds=seconds, seed=seed)
    return np.minimum(np.array(starts), np.nextafter(seconds, 0))

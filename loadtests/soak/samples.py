"""What a service holds over time: memory and descriptors, and how far they drift."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from threading import Event, Thread
from time import monotonic

from loadtests.clients.connection import Connection, RequestFailed, get
from loadtests.measure.footprint import resident

WINDOW = 0.25  # the first and the last quarter of what is judged are compared
_LIVE_BYTES = re.compile(rb"^keymatch_live_bytes (\S+)$", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One look at the server's process: `at` in seconds since the start, sizes in megabytes."""

    at: float
    resident: float
    private: float
    descriptors: int
    live: float  # of what was learned, as the service estimates it


@dataclass(frozen=True, kw_only=True)
class Drift:
    """The medians of a figure in the first and in the last window."""

    first: float
    last: float

    @property
    def share(self) -> float:
        """By how much of the first the last is larger."""
        return self.last / self.first - 1


def drift(samples: Sequence[Sample], figure: Callable[[Sample], float]) -> Drift:
    """Compare the first with the last window of samples; there must be eight samples."""
    size = max(1, round(WINDOW * len(samples)))
    return Drift(
        first=median(map(figure, samples[:size])), last=median(map(figure, samples[-size:]))
    )


class Sampler(Thread):
    """Looks at a server every `seconds`, until it is stopped."""

    def __init__(
        self,
        pid: int,
        port: int,
        samples: list[Sample],
        *,
        start: float,
        seconds: float,
        stop: Event,
    ) -> None:
        """Append to `samples`; times count from `start`, by `monotonic`."""
        super().__init__(name="sampler", daemon=True)
        self._pid, self._port, self._samples = pid, port, samples
        self._start, self._seconds, self._stop_asked = start, seconds, stop

    def run(self) -> None:
        """Sample until asked to stop."""
        while not self._stop_asked.wait(self._seconds):
            try:
                self._samples.append(self._sample())
            except (OSError, RequestFailed):  # the server was killed, or has just been replaced
                continue

    def _sample(self) -> Sample:
        connection = Connection(self._port)
        try:
            _, metrics = connection.ask(get("/metrics"))
        finally:
            connection.close()
        live = _LIVE_BYTES.search(metrics)
        size = resident(self._pid)
        return Sample(
            at=monotonic() - self._start,
            resident=size.total,
            private=size.private,
            descriptors=len(list(Path(f"/proc/{self._pid}/fd").iterdir())),
            live=float(live[1]) / 1e6 if live else 0.0,
        )

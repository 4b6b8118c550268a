"""Samples of a service's memory and open files over time, and their drift."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from threading import Event, Thread
from time import monotonic

from loadtests.clients.connection import RequestFailed
from loadtests.resources import metric, metrics_of, resident

WINDOW = 0.25  # the first and the last quarter of the judged samples are compared


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A sample of the server's process: `at` in seconds since the start, sizes in megabytes."""

    at: float
    resident: float
    private: float
    descriptors: int
    live: float  # the service's own estimate for what it has learned


@dataclass(frozen=True, kw_only=True)
class Drift:
    """The medians of a figure in the first and in the last window."""

    first: float
    last: float

    @property
    def share(self) -> float:
        """The growth from the first to the last window, relative to the first."""
        return self.last / self.first - 1


def drift(samples: Sequence[Sample], figure: Callable[[Sample], float]) -> Drift:
    """Compare the first with the last window of samples; needs at least eight samples."""
    size = max(1, round(WINDOW * len(samples)))
    return Drift(
        first=median(map(figure, samples[:size])), last=median(map(figure, samples[-size:]))
    )


class Sampler(Thread):
    """Samples a server every `seconds`, until it is stopped."""

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
            except (OSError, RequestFailed):  # the server was killed, or is just being replaced
                continue

    def _sample(self) -> Sample:
        live, size = metric(metrics_of(self._port), "keymatch_live_bytes"), resident(self._pid)
        return Sample(
            at=monotonic() - self._start,
            resident=size.total,
            private=size.private,
            descriptors=len(list(Path(f"/proc/{self._pid}/fd").iterdir())),
            live=live / 1e6,
        )

"""Metrics as text, rendered in pieces, so that a scrape does not hold up queries.

Rendering takes milliseconds of pure Python, more with several workers, whose files are merged. In
another thread it would still keep the interpreter's lock for up to five milliseconds at a time, and
with it the event loop and the answering threads. So it rests after each family of metrics.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from time import sleep

from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

REST_SECONDS = 0.0005  # the shortest after which a thread that waits for the lock has taken it
_FILE_KINDS = ("counter", "gauge", "histogram")  # a metric is in files of one kind only


def render(registry: CollectorRegistry, shared: Path | None) -> bytes:
    """The metrics of a process, or of all workers that write to the folder `shared`.

    It rests many times, so the event loop must not call it.
    """
    families = registry.collect() if shared is None else _merged(shared)
    return generate_latest(_Resting(families))


class _Resting(Collector):
    """Yields families with a rest before each of them."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        for family in self._families:
            # Times of creation are a third of the text, files do not keep them, and nobody asks.
            family.samples = [
                sample for sample in family.samples if not sample.name.endswith("_created")
            ]
            sleep(REST_SECONDS)
            yield family


def _merged(folder: Path) -> Iterator[Metric]:
    for kind in _FILE_KINDS:
        files = [str(path) for path in folder.glob(f"{kind}_*.db")]
        yield from MultiProcessCollector.merge(files)  # type: ignore[no-untyped-call]
        sleep(REST_SECONDS)

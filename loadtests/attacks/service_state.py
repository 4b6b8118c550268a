"""What an attacked service says of itself, and what it holds: errors, defects, memory, budget."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from threading import Event, Thread

from loadtests.clients.connection import Connection, get
from loadtests.measure.footprint import Resident, resident
from loadtests.measure.processor_time import process_tree
from service.core.bundle.manifest import Manifest
from service.server.memory_budget import MEMORIES, shares
from service.settings import load_settings
from training.experiments.service_process import Server

MEMORY_SECONDS = 0.2  # between two looks at the memory
_INTERNAL = re.compile(rb'^keymatch_requests_total\{[^}]*status="500"[^}]*\} (\S+)$', re.MULTILINE)
_LIVE_BYTES = re.compile(rb"^keymatch_live_bytes (\S+)$", re.MULTILINE)
_DEFECTS = (b'"message":"defect"', b"Exception in ASGI application", b"Traceback (most recent")


def internal_errors(metrics: bytes) -> int:
    """How many requests were answered with 500."""
    return sum(int(float(count)) for count in _INTERNAL.findall(metrics))


def defects(server: Server) -> int:
    """How many lines of the service's log tell of a defect."""
    lines = server.log.read_bytes().splitlines()
    return sum(any(sign in line for sign in _DEFECTS) for line in lines)


def metrics_of(server: Server) -> bytes:
    """The service's metrics."""
    connection = Connection(server.port)
    _, metrics = connection.ask(get("/metrics"))
    connection.close()
    return metrics


def budget(bundle: Manifest, metrics: bytes) -> float:
    """Megabytes that a service with default settings may take, with what it has learned so far."""
    [live] = _LIVE_BYTES.findall(metrics)
    others = sum(share.size for share in shares(load_settings(None, {}), bundle))
    return (others + MEMORIES * float(live)) / 1e6


def memory_of_tree(pid: int) -> float:
    """Megabytes of a process and its descendants; pages of files, which they share, count once."""
    of_each = [one for one in map(_resident, process_tree(pid)) if one is not None]
    return sum(one.private for one in of_each) + max((one.shared for one in of_each), default=0.0)


def _resident(pid: int) -> Resident | None:
    try:
        return resident(pid)
    except (OSError, KeyError):  # it has just ended
        return None


@contextmanager
def watching_memory(pid: int) -> Iterator[Mapping[str, float]]:
    """Keep the most memory under "resident", in megabytes."""
    most, ended = {"resident": 0.0}, Event()

    def watch() -> None:
        while not ended.wait(MEMORY_SECONDS):
            most["resident"] = max(most["resident"], memory_of_tree(pid))

    thread = Thread(target=watch, name="memory")
    thread.start()
    try:
        yield most
    finally:
        ended.set()
        thread.join()

"""One round: a normal client in an open loop, alone or during an attack.

A round also records the service's answers of 500, logged defects, memory and memory budget.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from threading import Event, Thread
from time import perf_counter, sleep

from loadtests.attacks.attackers import ATTACKS
from loadtests.clients.connection import Connection, predict
from loadtests.clients.open_loop import Outcome
from loadtests.resources import metric, metrics_of, process_tree, resident
from loadtests.traffic import Health, Load, measure_predictions, probing
from service.child_server import Server
from service.core.bundle.manifest import Manifest
from service.server.memory_budget import MEMORIES, shares
from service.settings import load_settings

BEGINNING_SECONDS = 2.0  # the attack runs this long before the normal client is measured
ENDING_SECONDS = 1.0  # an attacker may take this long to end by itself
MEMORY_SECONDS = 0.2  # between two readings of the memory
_DEFECTS = (b'"message":"defect"', b"Exception in ASGI application", b"Traceback (most recent")


@dataclass(frozen=True, kw_only=True)
class Round:
    """The answers to the normal client and to a probe, and the memory of the service."""

    outcome: Outcome
    health: Health
    most_resident: float  # peak megabytes of all its processes
    budget: float  # megabytes that its processes may take
    first_after: float  # seconds that the first request after the round took
    first_status: int
    internal_errors: int  # answers of 500 to any client
    defects: int  # lines in the service's log that report a defect


def measure_round(
    server: Server,
    bundle: Manifest,
    queries: Iterator[str],
    load: Load,
    *,
    attack: str | None = None,
    turn: int = 0,
) -> Round:
    """Send the normal load, together with the attack named `attack` if given."""
    errors_before, defects_before = internal_errors(metrics_of(server.port)), defects(server)
    with watching_memory(server.pid) as megabytes:
        with _attacking(server.port, attack):
            sleep(BEGINNING_SECONDS)
            with probing(server) as health:
                outcome = measure_predictions(server, queries, load, turn=turn)
        began = perf_counter()
        with Connection(server.port) as connection:
            status, _ = connection.ask(predict(next(queries)))
        seconds = perf_counter() - began
    metrics = metrics_of(server.port)
    return Round(
        outcome=outcome,
        health=health,
        most_resident=max(megabytes),
        budget=budget(bundle, metrics),
        first_after=seconds,
        first_status=status,
        internal_errors=internal_errors(metrics) - errors_before,
        defects=defects(server) - defects_before,
    )


@contextmanager
def _attacking(port: int, attack: str | None) -> Iterator[None]:
    if attack is None:
        yield
        return
    spawned = multiprocessing.get_context("spawn")
    ended = spawned.Event()
    process = spawned.Process(target=ATTACKS[attack], args=(port, ended), daemon=True)
    process.start()
    try:
        yield
    finally:
        ended.set()
        process.join(ENDING_SECONDS)
        process.kill()  # an attacker that still waits for an answer
        process.join()


# The service's metrics, log and memory ---------------------------------------------------------


def internal_errors(metrics: str) -> int:
    """Return how many requests were answered with 500."""
    return int(metric(metrics, "keymatch_requests_total", 'status="500"'))


def defects(server: Server) -> int:
    """Return how many lines of the service's log report a defect."""
    lines = server.log.read_bytes().splitlines()
    return sum(any(sign in line for sign in _DEFECTS) for line in lines)


def budget(bundle: Manifest, metrics: str) -> float:
    """Megabytes that a service with default settings may take, including what it has learned."""
    live = metric(metrics, "keymatch_live_bytes")
    others = sum(share.size for share in shares(load_settings(None, {}), bundle))
    return (others + MEMORIES * live) / 1e6


def memory_of_tree(pid: int) -> float:
    """Megabytes of a process and its descendants; shared pages of files count once."""
    private, shared = 0.0, 0.0
    for process in process_tree(pid):
        with suppress(OSError, KeyError):  # the process has just ended
            memory = resident(process)
            private += memory.private
            shared = max(shared, memory.shared)
    return private + shared


@contextmanager
def watching_memory(pid: int) -> Iterator[list[float]]:
    """Collect the memory during the block, in megabytes."""
    megabytes, ended = [memory_of_tree(pid)], Event()

    def watch() -> None:
        while not ended.wait(MEMORY_SECONDS):
            megabytes.append(memory_of_tree(pid))

    thread = Thread(target=watch, name="memory")
    thread.start()
    try:
        yield megabytes
    finally:
        ended.set()
        thread.join()

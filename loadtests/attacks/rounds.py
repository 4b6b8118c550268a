"""One round: a normal client in an open loop, alone or during an attack.

A round also records the service's answers of 500, logged defects, memory and memory budget.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from multiprocessing import synchronize as events
from threading import Event, Thread
from time import perf_counter, sleep

from loadtests.attacks.attackers import ATTACKS
from loadtests.clients.connection import Connection, predict
from loadtests.clients.open_loop import Outcome
from loadtests.report import Row
from loadtests.resources import metric, metrics_of, process_tree, resident
from loadtests.traffic import Health, Load, Summary, measure_predictions, probing
from service.child_server import Server
from service.core.bundle.manifest import Manifest
from service.server.memory_budget import MEMORIES, shares
from service.settings import load_settings

BEGINNING_SECONDS = 2.0  # the attack runs this long before the normal client is measured
ENDING_SECONDS = 2.0  # an attacker may take this long to end by itself
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
        attacker = attacking(_attack, attack, server.port) if attack else nullcontext()
        with attacker, probing(server) as health:
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


def disturbed_row(
    what: str,
    quiet: Outcome,
    beside: Outcome,
    *,
    ratio: float,
    goal: str,
    allowed: Collection[str] = (),
) -> Row:
    """Return the row of a client's p99 next to a quiet round's, at most `ratio` times it.

    `goal` says in words that only `allowed` failures may happen.
    """
    usual, attacked = Summary.of(quiet.latencies), Summary.of(beside.latencies)
    return Row(
        what=what,
        goal=f"<= {ratio:g}x, {goal}",
        measured=f"{attacked.p99 / usual.p99:.1f}x: {usual.p99:.1f} to {attacked.p99:.1f} ms"
        f" (p50 {usual.p50:.1f} to {attacked.p50:.1f}); not answered:"
        f" {beside.failures or 'none'}",
        met=attacked.p99 <= ratio * usual.p99 and beside.failures.keys() <= set(allowed),
        figures={"quiet": usual, "attacked": attacked, **beside.failures},
    )


@contextmanager
def attacking(attack: Callable[..., None], *arguments: object) -> Iterator[None]:
    """Call `attack(*arguments, begun, ended)` in a process during the block.

    It sets `begun` when the attack begins, and ends soon after `ended` is set. The block begins
    some seconds later.
    """
    spawned = multiprocessing.get_context("spawn")
    begun, ended = spawned.Event(), spawned.Event()
    process = spawned.Process(target=attack, args=(*arguments, begun, ended), daemon=True)
    process.start()
    while not begun.wait(0.1):
        if not process.is_alive():
            raise ChildProcessError(f"the attack {arguments} has not begun")
    sleep(BEGINNING_SECONDS)
    try:
        yield
    finally:
        ended.set()
        process.join(ENDING_SECONDS)
        process.kill()  # an attacker that still waits for an answer
        process.join()


def _attack(name: str, port: int, begun: events.Event, ended: events.Event) -> None:
    begun.set()
    ATTACKS[name](port, ended)


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

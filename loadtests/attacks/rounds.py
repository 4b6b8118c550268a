"""One round: a normal client in an open loop, alone or beside an attack."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event, Thread
from time import perf_counter, sleep

from loadtests.attacks.attackers import ATTACKS
from loadtests.clients.connection import Connection, predict
from loadtests.clients.open_loop import Outcome, drive
from loadtests.measure.footprint import resident
from loadtests.measure.overload import Health, probing
from loadtests.measure.traffic import PREDICT, Load
from training.experiments.service_process import Server

BEGINNING_SECONDS = 2.0  # before the normal client is measured: the attack is under way
_MEMORY_SECONDS = 0.2


@dataclass(frozen=True, kw_only=True)
class Round:
    """What the normal client and a probe saw, and what the service held."""

    outcome: Outcome
    health: Health
    most_resident: float  # megabytes, the largest that was seen
    first_after: float  # seconds of the first request after the round


def measure_round(
    server: Server, queries: Iterator[str], load: Load, *, attack: str | None = None, turn: int = 0
) -> Round:
    """Send the normal load, beside the `attack` of that name if there is one."""
    stream = load.predictions(queries, seconds=load.seconds, turn=turn)
    with _attacking(server.port, attack), _watching_memory(server.pid) as most:
        sleep(BEGINNING_SECONDS)
        with probing(server) as health:
            outcome = drive(server.port, [stream])[PREDICT]
    began = perf_counter()
    connection = Connection(server.port)
    connection.ask(predict(next(queries)))
    connection.close()
    return Round(
        outcome=outcome,
        health=health,
        most_resident=most["resident"],
        first_after=perf_counter() - began,
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
        process.join(1.0)
        process.kill()  # one that waits for an answer
        process.join()


@contextmanager
def _watching_memory(pid: int) -> Iterator[Mapping[str, float]]:
    most, ended = {"resident": 0.0}, Event()

    def watch() -> None:
        while not ended.wait(_MEMORY_SECONDS):
            most["resident"] = max(most["resident"], resident(pid).total)

    thread = Thread(target=watch, name="memory")
    thread.start()
    try:
        yield most
    finally:
        ended.set()
        thread.join()

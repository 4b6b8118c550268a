"""One round: a normal client in an open loop, alone or beside an attack."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter, sleep

from loadtests.attacks.attackers import ATTACKS
from loadtests.attacks.service_state import (
    budget,
    defects,
    internal_errors,
    metrics_of,
    watching_memory,
)
from loadtests.clients.connection import Connection, predict
from loadtests.clients.open_loop import Outcome, drive
from loadtests.measure.overload import Health, probing
from loadtests.measure.traffic import PREDICT, Load
from service.core.bundle.manifest import Manifest
from training.experiments.service_process import Server

BEGINNING_SECONDS = 2.0  # before the normal client is measured: the attack is under way
ENDING_SECONDS = 1.0  # that an attacker has to end by itself


@dataclass(frozen=True, kw_only=True)
class Round:
    """What the normal client and a probe saw, and what the service held."""

    outcome: Outcome
    health: Health
    most_resident: float  # megabytes of all its processes, the most that was seen
    budget: float  # megabytes that they may take
    first_after: float  # seconds of the first request after the round
    first_status: int
    internal_errors: int  # answers of 500 to any client
    defects: int  # lines of the service's log


def measure_round(
    server: Server,
    bundle: Manifest,
    queries: Iterator[str],
    load: Load,
    *,
    attack: str | None = None,
    turn: int = 0,
) -> Round:
    """Send the normal load, beside the `attack` of that name if there is one."""
    stream = load.predictions(queries, seconds=load.seconds, turn=turn)
    errors_before, defects_before = internal_errors(metrics_of(server)), defects(server)
    with watching_memory(server.pid) as most:
        with _attacking(server.port, attack):
            sleep(BEGINNING_SECONDS)
            with probing(server) as health:
                outcome = drive(server.port, [stream])[PREDICT]
        status, seconds = _first_request(server, next(queries))
    metrics = metrics_of(server)
    return Round(
        outcome=outcome,
        health=health,
        most_resident=most["resident"],
        budget=budget(bundle, metrics),
        first_after=seconds,
        first_status=status,
        internal_errors=internal_errors(metrics) - errors_before,
        defects=defects(server) - defects_before,
    )


def _first_request(server: Server, query: str) -> tuple[int, float]:
    """Status and seconds of a prediction on a connection of its own."""
    began = perf_counter()
    connection = Connection(server.port)
    status, _ = connection.ask(predict(query))
    connection.close()
    return status, perf_counter() - began


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
        process.kill()  # one that waits for an answer
        process.join()

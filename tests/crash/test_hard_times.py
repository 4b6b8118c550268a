"""Workers that are killed each second, and one that is stopped."""

import os
import random
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from time import sleep

import httpx
import pytest

from tests.crash.scenario import Scenario
from tests.support.children import child_processes
from tests.support.serving import ServerProcess, wait_for

pytestmark = pytest.mark.slow

KILLS = 5  # one a second, with a check of everything after each


def workers(server: ServerProcess) -> list[int]:
    return child_processes(server.process.pid, "--multiprocessing-fork")


def ready(server: ServerProcess) -> bool:
    with suppress(httpx.TransportError):  # its connection was to a worker that has died
        return bool(server.client.get("/health/ready").status_code == 200)
    return False


@contextmanager
def two_workers(scenario: Scenario) -> Iterator[ServerProcess]:
    with scenario.server(options=["--workers", "2"]) as server:
        wait_for(lambda: len(workers(server)) == 2)
        yield server
        wait_for(lambda: len(workers(server)) == 2 and ready(server))
        scenario.check(server)
        scenario.check_log()


def test_a_worker_is_killed_each_second(new_scenario: Callable[..., Scenario]) -> None:
    scenario, drawn = new_scenario(seed="workers"), random.Random("workers")
    with two_workers(scenario) as server:
        for _ in range(KILLS):
            with scenario.traffic(server):
                sleep(1.0)
                for worker in drawn.sample(workers(server), 1):
                    os.kill(worker, signal.SIGKILL)
            scenario.settle_ledgers()


def test_a_stopped_worker(new_scenario: Callable[..., Scenario]) -> None:
    """The supervisor replaces it. Requests that it held are lost, unless they were acknowledged."""
    scenario = new_scenario(seed="stopped worker")
    with two_workers(scenario) as server:
        [stopped, _] = workers(server)
        with scenario.traffic(server):
            sleep(1.0)
            os.kill(stopped, signal.SIGSTOP)
            wait_for(lambda: stopped not in workers(server))
        scenario.settle_ledgers()

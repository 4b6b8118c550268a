"""Workers that are killed or stopped, a replaced log, few file descriptors, a clock that jumps."""

import os
import random
import resource
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from time import sleep
from typing import Any

import httpx
import pytest

from service.core import times
from service.core.label_log import open_log
from tests.crash import jumping_clock_service
from tests.crash.scenario import QUERIES, Scenario, copied_log
from tests.support.children import child_processes
from tests.support.http.problems import assert_problem
from tests.support.serving import ServerProcess, wait_for

pytestmark = pytest.mark.slow

# One a second, with a check of everything after each.
KILLS = int(os.environ.get("KEYMATCH_WORKER_KILLS", "5"))
BEYOND = 8  # connections that find no file descriptor


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
    """The supervisor replaces it. Requests that it held are lost, unless they were acknowledged.

    It may be stopped while it holds the lock of the log: then all writes get 503 meanwhile.
    """
    scenario = new_scenario(seed="stopped worker", patience=True)
    with two_workers(scenario) as server:
        [stopped, _] = workers(server)
        with scenario.traffic(server):
            sleep(1.0)
            os.kill(stopped, signal.SIGSTOP)
            wait_for(lambda: stopped not in workers(server))
        scenario.settle_ledgers()


# The log's folder ------------------------------------------------------------------------


@pytest.mark.parametrize("other", ["new", "older copy"])
def test_a_replaced_log_folder(new_scenario: Callable[..., Scenario], other: str) -> None:
    """Writes are refused while another folder is in the log's place, and go on afterwards."""
    scenario = new_scenario(seed=f"replaced by a {other} log", patience=True)
    assert isinstance(scenario.state, Path)
    aside = scenario.state.with_name("aside")
    with scenario.server() as server, scenario.traffic(server):
        scenario.wait_for_writes(20)
        copied_log(scenario.state, scenario.folder / "older copy")
        scenario.wait_for_writes(20)
        open_log(scenario.folder / "new").close()
        before = events_of(scenario.folder / other)
        scenario.state.rename(aside)
        (scenario.folder / other).rename(scenario.state)
        refused = scenario.refused
        wait_for(lambda: scenario.refused >= refused + len(scenario.clients))
        writes = scenario.writes
        problem = assert_problem(post_label(server), 503)
        assert problem["title"] == "The label log cannot be written"
        assert_problem(server.client.get("/health/ready"), 503)
        assert server.client.post("/predict", json={"queries": QUERIES}).status_code == 200
        assert scenario.writes == writes  # none was acknowledged since
        scenario.state.rename(scenario.folder / other)
        aside.rename(scenario.state)
        scenario.wait_for_writes(20)
        wait_for(lambda: ready(server))
        assert server.logged("the label log cannot be used")
    assert events_of(scenario.folder / other) == before  # nothing went into the other log
    with scenario.server() as server:
        scenario.check(server)
    scenario.check_log()


def post_label(server: ServerProcess) -> httpx.Response:
    return server.client.post("/labels", json={"labels": [{"text": "quiet harbor"}]})


def events_of(state: Path) -> list[tuple[int, str, Mapping[str, Any]]]:
    with closing(open_log(state, create=False)) as log:
        return [(event.sequence, event.kind, event.body) for event in log.read()]


# File descriptors ------------------------------------------------------------------------


def test_few_file_descriptors(new_scenario: Callable[..., Scenario]) -> None:
    """Connections, child processes and the log run out of them, and get some again."""
    scenario = new_scenario(seed="descriptors", patience=True)
    for client in scenario.clients:
        client.habits = {**client.habits, "stream": 0}  # each would need a new connection
    with scenario.server() as server:
        soft, hard = resource.prlimit(server.pid, resource.RLIMIT_NOFILE)
        with scenario.traffic(server), ExitStack() as idle:
            scenario.wait_for_writes(30)
            used = [int(name) for name in os.listdir(f"/proc/{server.pid}/fd")]
            resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (max(used) + 1, hard))
            for _ in range(max(used) - len(used) + BEYOND):
                idle.enter_context(server.connect())
            tried = scenario.writes + scenario.refused
            wait_for(lambda: scenario.writes + scenario.refused >= tried + 100)
            resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (soft, hard))
            idle.close()
            scenario.wait_for_writes(30)
        wait_for(lambda: ready(server))
        scenario.check(server)
        scenario.prove_equal(server)
    scenario.check_log()


# The clock -------------------------------------------------------------------------------


def test_a_clock_that_jumps(new_scenario: Callable[..., Scenario]) -> None:
    """An hour forth and back: dates follow the clock, and the log's order does not."""
    scenario = new_scenario(seed="clock", patience=True)
    for client in scenario.clients:
        client.dates_pass = False  # those of this test do
    clock = scenario.folder / "clock"
    clock.write_text("0")
    scenario.others |= {"later", "always"}
    with scenario.server((str(jumping_clock_service.__file__), str(clock))) as server:
        half_hour = times.shown(times.now() + 1800 * times.SECOND)
        label = {"id": "later", "text": "quiet harbor", "starts_at": half_hour}
        always = {"id": "always", "text": "silent harbor"}
        rule = {"id": "later", "starts_at": half_hour, "then": {"hide": ["always"]}}
        key = {"Idempotency-Key": "before-the-jumps"}
        posted = server.client.post("/labels", json={"labels": [label, always]}, headers=key)
        assert posted.status_code == 200, posted.text
        assert server.client.post("/rules", json={"rules": [rule]}).status_code == 200
        for seconds in (3600, -3600, 0):
            set_clock(clock, seconds)
            assert ("later" in found(server, "quiet harbor")) == (seconds > 1800)
            assert ("always" in found(server, "silent harbor")) == (seconds <= 1800)
            again = server.client.post("/labels", json={"labels": [label, always]}, headers=key)
            assert again.json() == posted.json()
            with scenario.traffic(server):
                scenario.wait_for_writes(10)
                set_clock(clock, seconds - 1800)
                scenario.wait_for_writes(10)
        set_clock(clock, 0)
        for path in ("/rules/later", "/labels/later", "/labels/always"):
            assert server.client.delete(path).status_code == 200
        server.kill()
    scenario.check_restart()
    scenario.check_log()


def set_clock(file: Path, seconds: int) -> None:
    partial = file.with_suffix(".partial")
    partial.write_text(str(seconds))
    partial.replace(file)


def found(server: ServerProcess, query: str) -> list[str]:
    """Return the ids of the labels in the answer to a query."""
    asked = {"queries": [query], "top_k": 50, "deadline_ms": 60_000}
    [result] = server.client.post("/predict", json=asked).json()["results"]
    return [keyword["id"] for keyword in result["keywords"]]

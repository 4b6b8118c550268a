"""Processes that share a log show each other's acknowledged writes, in the same order.

Nothing is lost when connections to PostgreSQL are cut or the database itself crashes.
"""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from time import perf_counter

import pytest
import sqlalchemy as sa

from tests.crash.scenario import FIGURES, QUERIES, Scenario
from tests.support.http.problems import assert_problem
from tests.support.http.wire import Wire
from tests.support.postgres import changed
from tests.support.serving import ServerProcess, wait_for

pytestmark = pytest.mark.slow

TIMED_WRITES = 200
CUTS = 5


@pytest.mark.parametrize(("log", "processes"), [("SQLite", 2), ("PostgreSQL", 3)])
def test_processes_share_a_log(
    new_scenario: Callable[..., Scenario], request: pytest.FixtureRequest, log: str, processes: int
) -> None:
    state = request.getfixturevalue("postgres_url") if log == "PostgreSQL" else ""
    scenario = new_scenario(seed=f"{processes} processes", state=state)
    with ExitStack() as running:
        servers = [running.enter_context(scenario.server()) for _ in range(processes)]
        with scenario.traffic(*servers):
            scenario.wait_for_writes(100)
            servers[0].kill()
            scenario.wait_for_writes(100)
        servers[0] = running.enter_context(scenario.server())
        scenario.check(servers[1])
        for server in servers:
            scenario.check_shown(server)
        scenario.prove_equal(*servers)
        FIGURES.visible[log] = visibility(servers[0], servers[-1])


def visibility(writer: ServerProcess, reader: ServerProcess) -> list[float]:
    """Measure the seconds from each write's answer until another process shows the write."""
    seconds = []
    for number in range(TIMED_WRITES):
        text = f"zephyr {number}"
        posted = writer.client.post("/labels", json={"labels": [{"text": text}]})
        start = perf_counter()
        asked = {"queries": [text], "min_version": posted.json()["version"], "deadline_ms": 60_000}
        answer = reader.client.post("/predict", json=asked)
        seconds.append(perf_counter() - start)
        assert answer.json()["version"] >= posted.json()["version"]
        assert reader.client.get(f"/labels/{text}").json()["text"] == text
    return seconds


def test_cut_connections(new_scenario: Callable[..., Scenario], postgres_url: str) -> None:
    with closing(Wire(sa.make_url(postgres_url))) as wire:
        state = changed(postgres_url, host="127.0.0.1", port=wire.port)
        scenario = new_scenario(seed="cut", state=state, patience=True)
        with scenario.server() as server:
            with scenario.traffic(server):
                for _ in range(CUTS):
                    scenario.wait_for_writes(20)
                    wire.cut()
                scenario.wait_for_writes(20)
            scenario.check(server)
            scenario.prove_equal(server)


@pytest.mark.stops_postgres
def test_a_restarted_database(new_scenario: Callable[..., Scenario], postgres_url: str) -> None:
    scenario = new_scenario(seed="restart", state=postgres_url, patience=True)
    with scenario.server() as server:
        with scenario.traffic(server):
            scenario.wait_for_writes(50)
            with stopped_database():
                wait_for(lambda: writes(server) == "failing")
                assert_problem(server.client.delete("/labels/nowhere"), 503)
                wait_for(lambda: scenario.refused > 0)
                for query in QUERIES:
                    answer = server.client.post("/predict", json={"queries": [query]})
                    assert answer.status_code == 200
                assert server.client.get("/health/live").status_code == 200
            scenario.wait_for_writes(50)
            assert writes(server) == "accepted"
        wait_for(lambda: server.logged("the label log is watched again"))
        scenario.check(server)
        scenario.prove_equal(server)
        assert_problem(server.client.delete("/labels/nowhere"), 404)


def writes(server: ServerProcess) -> str:
    """Return `writes` of /health/ready. It is always 200 here, because queries are answered."""
    ready = server.client.get("/health/ready")
    assert ready.status_code == 200
    return str(ready.json()["writes"])


@contextmanager
def stopped_database() -> Iterator[None]:
    """Stop the local PostgreSQL without a clean shutdown, and start it again after the block."""
    missing = None if shutil.which("pg_ctlcluster") else "there is no pg_ctlcluster"
    missing = missing or (None if os.getuid() == 0 else "only root may stop the cluster")
    if missing:
        what = f"NOT TESTED: a restarted database: {missing}"
        pytest.fail(what) if os.environ.get("CI") else pytest.skip(what)
    [version, *_] = os.listdir("/etc/postgresql")
    command = ["pg_ctlcluster", "--skip-systemctl-redirect", version, "main"]
    subprocess.run([*command, "stop", "-m", "immediate"], check=True)
    try:
        yield
    finally:
        subprocess.run([*command, "start"], check=True)

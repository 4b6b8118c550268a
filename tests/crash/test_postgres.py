"""Nothing is lost when connections to PostgreSQL are cut or the database itself crashes."""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg
import pytest
import sqlalchemy as sa

from tests.crash.scenario import QUERIES, Scenario
from tests.support.http.problems import assert_problem
from tests.support.serving import ServerProcess, wait_for

pytestmark = pytest.mark.slow

NAME = "keymatch-crash-test"  # application name of the connections that are cut
CUTS = 5


@pytest.fixture
def url(postgres_url: str) -> str:
    """The URL of a new schema; its connections have the application name `NAME`."""
    named = sa.make_url(postgres_url).update_query_dict({"application_name": NAME})
    return named.render_as_string(hide_password=False)


def test_cut_connections(new_scenario: Callable[..., Scenario], url: str) -> None:
    scenario = new_scenario(seed="cut", state=url, patience=True)
    with scenario.server() as server:
        with scenario.traffic(server), psycopg.connect(_plain(url), autocommit=True) as other:
            for _ in range(CUTS):
                goal = scenario.writes + 20
                wait_for(lambda goal=goal: scenario.writes > goal)
                other.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE application_name = %s AND pid <> pg_backend_pid()",
                    [NAME],
                )
            goal = scenario.writes + 20
            wait_for(lambda: scenario.writes > goal)
        scenario.check(server)
        scenario.prove_equal(server)


@pytest.mark.stops_postgres
def test_a_restarted_database(new_scenario: Callable[..., Scenario], url: str) -> None:
    scenario = new_scenario(seed="restart", state=url, patience=True)
    with scenario.server() as server:
        with scenario.traffic(server):
            wait_for(lambda: scenario.writes > 50)
            with stopped_database():
                wait_for(lambda: writes(server) == "failing")
                assert_problem(server.client.delete("/labels/nowhere"), 503)
                wait_for(lambda: scenario.refused > 0)
                for query in QUERIES:
                    answer = server.client.post("/predict", json={"queries": [query]})
                    assert answer.status_code == 200
                assert server.client.get("/health/live").status_code == 200
            goal = scenario.writes + 50
            wait_for(lambda: scenario.writes > goal)
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


def _plain(url: str) -> str:
    """The URL without the schema and the application name, for the test's own connection."""
    return sa.make_url(url).set(query={}).render_as_string(hide_password=False)

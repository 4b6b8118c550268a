"""The log in PostgreSQL: connections are cut, and the database itself crashes."""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg
import pytest
import sqlalchemy as sa

from tests.crash.life import Life
from tests.crash.twin import QUERIES
from tests.support.http.problems import assert_problem
from tests.support.serving import ServerProcess, wait_for

NAME = "keymatch-crash-test"  # of connections, so that nobody else's are cut
CUTS = 5


@pytest.fixture
def url(postgres_url: str) -> str:
    """A schema of its own, reached by connections that can be told from others."""
    named = sa.make_url(postgres_url).update_query_dict({"application_name": NAME})
    return named.render_as_string(hide_password=False)


def test_cut_connections(begin: Callable[..., Life], url: str) -> None:
    life = begin(seed="cut", state=url, patience=True)
    with life.server() as server:
        with life.traffic(server), psycopg.connect(_plain(url), autocommit=True) as other:
            for _ in range(CUTS):
                goal = life.writes + 20
                wait_for(lambda goal=goal: life.writes > goal)
                other.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE application_name = %s AND pid <> pg_backend_pid()",
                    [NAME],
                )
            goal = life.writes + 20
            wait_for(lambda: life.writes > goal)
        life.check(server)
        life.prove_equal(server)


def test_a_restarted_database(begin: Callable[..., Life], url: str) -> None:
    life = begin(seed="restart", state=url, patience=True)
    with life.server() as server:
        with life.traffic(server):
            wait_for(lambda: life.writes > 50)
            with stopped_database():
                wait_for(lambda: writes(server) == "failing")
                assert_problem(server.client.delete("/labels/nowhere"), 503)
                wait_for(lambda: life.refused > 0)
                for query in QUERIES:
                    answer = server.client.post("/predict", json={"queries": [query]})
                    assert answer.status_code == 200
                assert server.client.get("/health/live").status_code == 200
            goal = life.writes + 50
            wait_for(lambda: life.writes > goal)
            assert writes(server) == "accepted"
        wait_for(lambda: server.logged("the label log is watched again"))
        life.check(server)
        life.prove_equal(server)
        assert_problem(server.client.delete("/labels/nowhere"), 404)


def writes(server: ServerProcess) -> str:
    """What the probe says; it is 200 all the time, because queries are answered."""
    ready = server.client.get("/health/ready")
    assert ready.status_code == 200
    return str(ready.json()["writes"])


@contextmanager
def stopped_database() -> Iterator[None]:
    """The local cluster is stopped as if it had crashed, and started again."""
    missing = None if shutil.which("pg_ctlcluster") else "there is no pg_ctlcluster"
    missing = missing or (None if os.getuid() == 0 else "only root may stop the cluster")
    if missing:
        what = f"NOT TESTED: a restarted database: {missing}"
        if os.environ.get("CI"):
            pytest.fail(what)
        pytest.skip(what)
    [version, *_] = os.listdir("/etc/postgresql")
    command = ["pg_ctlcluster", "--skip-systemctl-redirect", version, "main"]
    subprocess.run([*command, "stop", "-m", "immediate"], check=True)
    try:
        yield
    finally:
        subprocess.run([*command, "start"], check=True)


def _plain(url: str) -> str:
    """The URL for a connection of the test's own."""
    return sa.make_url(url).set(query={}).render_as_string(hide_password=False)

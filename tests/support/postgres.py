"""A schema of its own in a PostgreSQL server for each test that asks for `postgres_url`.

`KEYMATCH_TEST_POSTGRES` names the server and database; any role that may create schemas will do.
"""

import fcntl
import os
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
import sqlalchemy as sa

SERVER = "postgresql://postgres@127.0.0.1:5432/test"


@pytest.fixture
def postgres_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of an empty schema, which is dropped afterwards."""
    alone = request.node.get_closest_marker("stops_postgres") is not None
    server = os.environ.get("KEYMATCH_TEST_POSTGRES", SERVER)
    schema = f"keymatch_{uuid.uuid4().hex}"
    with _database_in_use(alone=alone), _schema(server, schema):
        yield in_schema(server, schema)


@contextmanager
def _database_in_use(*, alone: bool) -> Iterator[None]:
    """Keep other test processes from stopping the server or, `alone`, from using it at all."""
    with (Path(tempfile.gettempdir()) / "keymatch-tests-postgres.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        yield


@contextmanager
def _schema(server: str, schema: str) -> Iterator[None]:
    with _connected(server) as connection:
        connection.execute(f"CREATE SCHEMA {schema}")
    try:
        yield
    finally:
        with _connected(server) as connection:  # a test may have restarted the server
            # A test that failed may have left a lock behind; its rows must not hold up the others.
            connection.execute("SET lock_timeout = '5s'")
            connection.execute("SET client_min_messages = 'warning'")
            connection.execute(f"DROP SCHEMA {schema} CASCADE")


def in_schema(url: str, schema: str) -> str:
    """The URL with the schema as its search path."""
    changed = sa.make_url(url).update_query_dict({"options": f"-csearch_path={schema}"})
    return changed.render_as_string(hide_password=False)


def changed(url: str, **parts: object) -> str:
    return sa.make_url(url).set(**parts).render_as_string(hide_password=False)


def with_query(url: str, **parameters: str) -> str:
    return sa.make_url(url).update_query_dict(parameters).render_as_string(hide_password=False)


def named_after_schema(url: str) -> str:
    """Connections carry the schema's name, so that a test can end its own connections only."""
    schema = sa.make_url(url).query["options"].removeprefix("-csearch_path=")
    return with_query(url, application_name=schema)


def _connected(server: str) -> psycopg.Connection:
    try:
        return psycopg.connect(server, autocommit=True, connect_timeout=5)
    except psycopg.OperationalError as error:
        what = f"NOT TESTED: no PostgreSQL (KEYMATCH_TEST_POSTGRES, else {SERVER}): {error}"
        if os.environ.get("CI"):
            pytest.fail(what)
        pytest.skip(what)

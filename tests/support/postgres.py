"""A separate PostgreSQL schema for each test that uses the fixture `postgres_url`.

`KEYMATCH_TEST_POSTGRES` names the server and database; the role must be allowed to create schemas.
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
    """The URL of an empty schema, which is dropped after the test."""
    alone = request.node.get_closest_marker("stops_postgres") is not None
    server = os.environ.get("KEYMATCH_TEST_POSTGRES", SERVER)
    schema = f"keymatch_{uuid.uuid4().hex}"
    with _database_in_use(alone=alone), _schema(server, schema):
        yield in_schema(server, schema)


@contextmanager
def _database_in_use(*, alone: bool) -> Iterator[None]:
    """Prevent other test processes from stopping the server or, with `alone`, from using it."""
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
            # A failed test may have left locks behind, which must not delay other tests.
            connection.execute("SET lock_timeout = '5s'")
            connection.execute("SET client_min_messages = 'warning'")
            connection.execute(f"DROP SCHEMA {schema} CASCADE")


def in_schema(url: str, schema: str) -> str:
    """Add the schema to the URL as its search path."""
    changed = sa.make_url(url).update_query_dict({"options": f"-csearch_path={schema}"})
    return changed.render_as_string(hide_password=False)


def changed(url: str, **parts: object) -> str:
    return sa.make_url(url).set(**parts).render_as_string(hide_password=False)


def with_query(url: str, **parameters: str) -> str:
    return sa.make_url(url).update_query_dict(parameters).render_as_string(hide_password=False)


def schema_of(url: str) -> str:
    """Return the schema of a URL that `in_schema` made."""
    return str(sa.make_url(url).query["options"]).removeprefix("-csearch_path=")


def with_options(url: str, *options: str) -> str:
    """Add connection options, such as `-cstatement_timeout=1s`, to the URL."""
    return with_query(url, options=" ".join((str(sa.make_url(url).query["options"]), *options)))


def _connected(server: str) -> psycopg.Connection:
    try:
        return psycopg.connect(server, autocommit=True, connect_timeout=5)
    except psycopg.OperationalError as error:
        what = f"NOT TESTED: no PostgreSQL (KEYMATCH_TEST_POSTGRES, else {SERVER}): {error}"
        pytest.fail(what) if os.environ.get("CI") else pytest.skip(what)

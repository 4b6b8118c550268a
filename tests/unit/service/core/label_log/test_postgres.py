"""The log in a PostgreSQL schema: URLs, schemas, limits, and network failures."""

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from time import monotonic

import pytest
import sqlalchemy as sa

from service.core.errors import InvalidConfig, LogError, MissingExtra
from service.core.label_log import LabelLog, machine, open_log, postgres
from service.core.label_log.postgres import PostgresDatabase
from tests.support.http.wire import Wire
from tests.support.label_logs import Follower, Place, append
from tests.support.postgres import (
    changed,
    in_schema,
    schema_of,
    with_options,
    with_query,
)
from tests.support.waiting import wait_for


@pytest.fixture
def place(postgres_url: str) -> Place:
    return Place(postgres_url)


def test_both_schemes_reach_the_same_log_and_its_place_shows_no_password(postgres_url: str) -> None:
    url = changed(postgres_url, password="secret")
    with closing(open_log(url)) as log:
        append(log, "a")
        assert "secret" not in log.place and ":***@" in log.place
    assert Place(changed(url, drivername="postgresql+psycopg")).ids() == ["a"]


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("mysql://u:secret@host/db", "a folder or postgresql://"),
        ("postgres://u:secret@host/db", "a folder or postgresql://"),
        ("sqlite:///labels.sqlite", "a folder or postgresql://"),
        ("postgresql://user:secret@host:port/db", "URL cannot be read"),
    ],
)
def test_another_url_is_refused_with_the_allowed_forms(url: str, said: str) -> None:
    with pytest.raises(InvalidConfig, match=said) as caught:
        open_log(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("parts", "query", "said"),
    [
        ({"database": "no_such_database"}, {}, 'database "no_such_database" does not exist'),
        ({"username": "nobody_at_all"}, {}, "nobody_at_all"),
        ({}, {"options": "-csearch_path=never_created"}, "no schema of its search_path exists"),
        ({"port": 1}, {"password": "hidden"}, "cannot be opened: .*onnection.* failed"),
    ],
)
def test_errors_quote_the_server_and_never_the_password(
    postgres_url: str, parts: dict[str, object], query: dict[str, str], said: str
) -> None:
    url = with_query(changed(postgres_url, password="secret", **parts), **query)
    with pytest.raises(LogError, match=said) as caught:
        open_log(url)
    assert str(caught.value).startswith("postgresql://")
    assert not any(hidden in str(caught.value) for hidden in ("secret", "hidden", "\n"))


def test_a_read_only_server_can_only_be_read(postgres_url: str) -> None:
    open_log(postgres_url).close()
    standby = Place(with_options(postgres_url, "-cdefault_transaction_read_only=on"))
    with pytest.raises(LogError, match="cannot be written: the server is a standby or read-only"):
        standby.open()
    with closing(standby.open(create=False)) as log:
        assert log.last_sequence() == 0


def test_without_psycopg_the_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "service.core.label_log.postgres")
    monkeypatch.setitem(sys.modules, "psycopg", None)  # makes its import fail
    with pytest.raises(MissingExtra) as caught:
        open_log("postgresql://host/db")
    assert (
        str(caught.value)
        == "psycopg is not installed: in keymatch's checkout, pip install '.[postgres]'"
    )


def test_two_schemas_of_one_database_are_two_logs(place: Place, postgres_url: str) -> None:
    """Neither log waits for the other, and a search path with both schemas does not mix them."""
    first = schema_of(postgres_url)
    second = f"{first}_2"
    place.tamper(f"CREATE SCHEMA {second}")
    both = in_schema(postgres_url, f"{second},{first}")
    try:
        with closing(place.open()) as log, closing(open_log(both)) as other:
            append(log, "a")
            assert other.id != log.id
            with log.exclusive(), other.exclusive() as appending:
                assert appending.last == 0
            append(other, "b", "c")
            assert (log.last_sequence(), other.last_sequence()) == (1, 2)
    finally:
        place.tamper(f"DROP SCHEMA {second} CASCADE")


COMMIT = "SHOW synchronous_commit"
LIMITS = "SELECT current_setting('lock_timeout'), current_setting('statement_timeout')"


@pytest.mark.parametrize(
    ("configured", "statement", "expected"),
    [
        ("synchronous_commit=off", COMMIT, ("on",)),
        ("synchronous_commit=local", COMMIT, ("on",)),
        ("synchronous_commit=remote_apply", COMMIT, ("remote_apply",)),
        ("statement_timeout=77s", LIMITS, ("4s", "77s")),
    ],
)
def test_commits_are_on_disk_and_statements_limited_unless_the_url_sets_more(
    postgres_url: str, configured: str, statement: str, expected: tuple[str, ...]
) -> None:
    url = sa.make_url(with_options(postgres_url, f"-c{configured}"))
    database = PostgresDatabase(url, create=True)
    with closing(database), database.exclusive() as connection:
        assert connection.exec_driver_sql(statement).one() == expected


def test_a_server_of_another_isolation_level_gives_no_number_twice(postgres_url: str) -> None:
    url = with_options(postgres_url, "-cdefault_transaction_isolation=serializable")
    with closing(open_log(url)) as log:
        with ThreadPoolExecutor(3) as threads:
            list(threads.map(lambda _: append(log, "a"), range(30)))
        assert log.last_sequence() == 30


# A network that fails ---------------------------------------------------------------------


@contextmanager
def wired(place: Place) -> Iterator[tuple[Wire, Place]]:
    """Yield a `Wire` that a test can cut, and the place of the same log as reached through it."""
    assert isinstance(place.state, str)
    with closing(Wire(sa.make_url(place.state))) as wire:
        yield wire, Place(changed(place.state, host="127.0.0.1", port=wire.port))


def test_a_silent_server_is_an_error_and_is_used_again_later(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the server falls silent within a transaction, nothing is written."""
    monkeypatch.setattr(postgres, "CONNECT_SECONDS", 2)  # the smallest value that libpq accepts
    with wired(place) as (wire, far), closing(far.open()) as log:
        append(log, "a")
        monkeypatch.setattr(postgres, "SILENCE_SECONDS", 0.3)
        wire.open.clear()
        start = monotonic()
        with pytest.raises(LogError, match="cannot be read: "):
            log.last_sequence()
        assert monotonic() - start < 30  # seconds; without the limit it would wait forever
        wire.open.set()
        with pytest.raises(LogError, match="no answer for"), log.exclusive() as appending:
            wire.open.clear()
            list(appending.read(after=0))
        wire.open.set()
        assert append(log, "b")[0].sequence == 2


def test_a_commit_whose_answer_is_lost_is_an_error_and_the_log_is_the_truth(place: Place) -> None:
    with wired(place) as (wire, far), closing(far.open()) as log:
        with pytest.raises(LogError, match="cannot be written"):
            with log.exclusive():
                wire.cut()
        assert append(log, "a")[0].sequence == log.last_sequence() == 1


def test_an_append_notifies(place: Place, log: LabelLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """The periodic signal is turned off, so only a notification can arrive; it has the number."""
    database = postgres.PostgresDatabase(sa.make_url(place.state), create=False)
    with closing(database), closing(database.signals(threading.Event())) as signals:
        next(signals)
        monkeypatch.setattr(postgres, "SIGNAL_SECONDS", 600)
        with closing(place.open()) as other:
            append(other, "a")
        assert next(signals) == 1  # without a notification, the test times out


def listeners(place: Place) -> list[int]:
    """Return the server's process ids of the connections that listen to this log."""
    database = postgres.PostgresDatabase(sa.make_url(place.state), create=False)
    with closing(database):
        query = f"SELECT pid FROM pg_stat_activity WHERE query = 'LISTEN {database._channel}'"
        return [row.pid for row in place.tamper(query)]


def test_one_process_of_a_machine_listens_for_all(place: Place) -> None:
    with closing(place.open()) as first, closing(place.open()) as second:
        followers = [Follower(first), Follower(second)]
        wait_for(lambda: all(follower.signals for follower in followers))
        assert len(listeners(place)) == 1
        with closing(place.open()) as other:
            append(other, "a")
            append(other, "b", "c")
        wait_for(lambda: all(3 in follower.signals for follower in followers))
        assert [follower.last for follower in followers] == [3, 3]


def test_when_the_listening_process_is_killed_another_one_listens(place: Place) -> None:
    """Once another listens, appends are signaled by number again, to all that are left."""
    place.open().close()
    command = [sys.executable, "-m", "tests.support.label_logs", str(place.state)]
    with (
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as listening,
        closing(place.open()) as first,
        closing(place.open()) as second,
    ):
        assert listening.stdout is not None
        assert listening.stdout.readline() == b"ready\n"
        followers = [Follower(first), Follower(second)]
        wait_for(lambda: all(follower.signals for follower in followers))
        before = listeners(place)
        listening.kill()
        wait_for(lambda: len(listeners(place)) == 1 and listeners(place) != before)
        with closing(place.open()) as other:

            def signaled() -> bool:
                """Append; the others may still be joining, and read it then without a signal."""
                [event] = append(other, "a")
                assert all(follower.reaches(event.sequence) for follower in followers)
                return all(event.sequence in follower.signals for follower in followers)

            wait_for(signaled)


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: only root can act as another user")
def test_a_listener_of_another_user_is_not_believed(place: Place) -> None:
    place.open().close()
    database = postgres.PostgresDatabase(sa.make_url(place.state), create=False)
    bind = """
import os, socket, sys
os.setuid(65534)
own = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
own.bind(chr(0) + sys.argv[1])
own.listen()
print("ready", flush=True)
sys.stdin.readline()
"""
    command = [sys.executable, "-c", bind, machine._address(database._name)[1:]]
    with (
        closing(database),
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as hostile,
        closing(place.open()) as log,
    ):
        assert hostile.stdout is not None
        assert hostile.stdout.readline() == b"ready\n"
        follower = Follower(log)
        wait_for(lambda: follower.signals)
        assert len(listeners(place)) == 1
        append(log, "a")
        wait_for(lambda: 1 in follower.signals)
        hostile.kill()


def test_signals_come_regularly_without_notifications(
    log: LabelLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "SIGNAL_SECONDS", 0.02)
    calls: list[None] = []
    log.watch(lambda newest: calls.append(None))
    wait_for(lambda: len(calls) >= 3)


def test_a_log_is_polled_until_the_lost_connection_is_replaced(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="keymatch")
    seen = []
    with wired(place) as (wire, far), closing(far.open()) as log:
        log.watch(lambda newest: seen.append(log.last_sequence()))
        wait_for(lambda: seen)
        wire.cut()
        append(log, "a")
        wait_for(lambda: seen[-1] == 1)
        wait_for(lambda: len(caplog.records) == 2)
        append(log, "b")
        wait_for(lambda: seen[-1] == 2)
    assert [record.message for record in caplog.records] == [
        "the label log cannot be watched; it is polled",
        "the label log is watched again",
    ]

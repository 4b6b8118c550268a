"""The log in PostgreSQL over a network that fails: silence, cut connections, and signals."""

import logging
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from time import monotonic

import pytest
import sqlalchemy as sa

from service.core.errors import LogError
from service.core.label_log import LabelLog, postgres
from tests.support.http.wire import Wire
from tests.support.label_logs import Place, append
from tests.support.postgres import changed, named_after_schema
from tests.support.waiting import wait_for


@pytest.fixture
def place(postgres_url: str) -> Place:
    return Place(named_after_schema(postgres_url))


@contextmanager
def wired(place: Place) -> Iterator[tuple[Wire, Place]]:
    """The same log, reached through a `Wire` that a test can cut."""
    assert isinstance(place.state, str)
    with closing(Wire(sa.make_url(place.state))) as wire:
        yield wire, Place(changed(place.state, host="127.0.0.1", port=wire.port))


def test_a_silent_server_is_an_error_and_is_used_again_later(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "CONNECT_SECONDS", 2)  # the smallest value that libpq accepts
    with wired(place) as (wire, far), closing(far.open()) as log:
        append(log, "a")
        monkeypatch.setattr(postgres, "SILENCE_SECONDS", 0.3)
        wire.open.clear()
        start = monotonic()
        with pytest.raises(LogError, match="cannot be read: "):
            log.last_sequence()
        assert monotonic() - start < 30  # seconds; without the limit it would wait for ever
        wire.open.set()
        assert append(log, "b")[0].sequence == 2


def test_silence_within_a_transaction_is_an_error_and_nothing_is_written(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    with wired(place) as (wire, far), closing(far.open()) as log:
        with pytest.raises(LogError, match="no answer for"), log.exclusive() as appending:
            monkeypatch.setattr(postgres, "SILENCE_SECONDS", 0.3)
            wire.open.clear()
            list(appending.read(after=0))
        wire.open.set()
        assert append(log, "a")[0].sequence == 1


def test_a_commit_whose_answer_is_lost_is_an_error_and_the_log_is_the_truth(place: Place) -> None:
    with wired(place) as (wire, far), closing(far.open()) as log:
        with pytest.raises(LogError, match="cannot be written"):
            with log.exclusive():
                wire.cut()
        assert append(log, "a")[0].sequence == log.last_sequence() == 1


def test_connections_that_the_server_has_closed_are_replaced(place: Place, log: LabelLog) -> None:
    append(log, "a")
    end_connections(place)
    assert log.last_sequence() == 1
    end_connections(place)
    assert append(log, "b")[0].sequence == 2


def end_connections(place: Place) -> None:
    """End all connections to this test's schema, as a restart of the server does."""
    assert isinstance(place.state, str)
    ended = place.tamper(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE pid <> pg_backend_pid() AND application_name = :name",
        name=sa.make_url(place.state).query["application_name"],
    )
    assert ended


# Watching --------------------------------------------------------------------------------


def test_an_append_notifies(place: Place, log: LabelLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """The regular signal is turned off."""
    stop = threading.Event()
    with closing(log._database.signals(stop)) as signals:
        next(signals)
        monkeypatch.setattr(postgres, "SIGNAL_SECONDS", 600)
        with closing(place.open()) as other:
            append(other, "a")
        next(signals)  # else the test's own time limit ends it
        assert log.last_sequence() == 1


def test_signals_come_regularly_without_notifications(
    log: LabelLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "SIGNAL_SECONDS", 0.02)
    calls: list[None] = []
    log.watch(lambda: calls.append(None))
    wait_for(lambda: len(calls) >= 3)


def test_a_log_is_polled_until_the_lost_connection_is_replaced(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="keymatch")
    seen = []
    with wired(place) as (wire, far), closing(far.open()) as log:
        log.watch(lambda: seen.append(log.last_sequence()))
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

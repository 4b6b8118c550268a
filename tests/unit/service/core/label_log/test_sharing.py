"""Several users of one log: they take turns, wait for the lock, and are called after appends.

`tests/integration/memory/test_label_log_processes.py` proves the same between processes.
"""

import logging
import threading
from contextlib import closing

import pytest

from service.core.errors import LogLocked
from service.core.label_log import LabelLog, postgres, sqlite
from tests.support.label_logs import Follower, Place, append
from tests.support.waiting import wait_for


def test_threads_of_one_process_take_turns(log: LabelLog) -> None:
    threads = [
        threading.Thread(target=lambda: [append(log, "a", "b") for _ in range(10)])
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [event.sequence for event in log.read()] == list(range(1, 81))


def test_waiting_too_long_for_the_lock_is_an_error(
    place: Place, log: LabelLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "LOCK_SECONDS", 0.1)
    monkeypatch.setattr(postgres, "_LIMITS", "SET lock_timeout = '100ms'")
    with closing(place.open()) as other:
        with log.exclusive():
            with pytest.raises(LogLocked, match="another process held its lock for too long"):
                append(other, "b")
            assert other.last_sequence() == 0  # reading needs no lock
        assert append(other, "b")[0].sequence == 1


# Watching --------------------------------------------------------------------------------


def test_a_watcher_is_also_called_after_appends_of_its_own_log(log: LabelLog) -> None:
    follower = Follower(log)
    append(log, "a", "b")
    assert follower.reaches(2)


def test_a_log_takes_only_one_callback(log: LabelLog) -> None:
    log.watch(lambda: None)
    with pytest.raises(RuntimeError, match="watched already"):
        log.watch(lambda: None)


def test_closing_ends_the_watching_thread(place: Place) -> None:
    log = place.open()
    threads = []
    log.watch(lambda: threads.append(threading.current_thread()))
    wait_for(lambda: threads)
    log.close()
    assert not threads[0].is_alive()


def test_a_callback_may_close_the_log(place: Place) -> None:
    log = place.open()
    threads = []

    def close() -> None:
        threads.append(threading.current_thread())
        log.close()

    log.watch(close)
    wait_for(lambda: threads and not threads[0].is_alive())


def test_a_callback_that_raises_is_called_again_and_logged_once(
    log: LabelLog, place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    calls = []

    def fail() -> None:
        calls.append(None)
        raise ZeroDivisionError

    log.watch(fail)
    with closing(place.open()) as other:
        for number in range(3):
            before = len(calls)
            append(other, f"label {number}")
            wait_for(lambda before=before: len(calls) > before)
    failures = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert len(failures) == 1

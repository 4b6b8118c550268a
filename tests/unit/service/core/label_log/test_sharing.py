"""Several processes with one log: the order they agree on, the lock, and who notices what."""

import logging
import subprocess
import sys
import threading
from collections import defaultdict
from contextlib import closing

import pytest

from service.core.errors import LogLocked
from service.core.label_log import LabelLog, postgres, sqlite
from tests.support.label_logs import Place, append
from tests.support.waiting import wait_for

PROCESSES, EVENTS = 4, 200


def appender(place: Place, name: str, count: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.support.label_logs", str(place.state), name, str(count)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> None:
    _, complaint = process.communicate(timeout=120)
    assert (process.returncode, complaint) == (0, "")


def test_processes_that_append_at_once_agree_on_one_gapless_order(place: Place) -> None:
    appenders = [appender(place, f"p{number}", EVENTS) for number in range(PROCESSES)]
    for process in appenders:
        finish(process)
    with closing(place.open()) as log:
        events = list(log.read())  # raises at a gap
    assert [event.sequence for event in events] == list(range(1, PROCESSES * EVENTS + 1))
    orders = defaultdict(list)
    for event in events:
        name, _, number = event.body["id"].partition("-")
        orders[name].append(int(number))
    assert orders == {f"p{number}": list(range(EVENTS)) for number in range(PROCESSES)}


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


def test_who_waits_for_the_lock_too_long_is_told(
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


class Follower:
    """Reads on whenever the log calls, as a replica does."""

    def __init__(self, log: LabelLog) -> None:
        self.log, self.calls, self.seen = log, 0, 0
        log.watch(self)

    def __call__(self) -> None:
        self.calls += 1
        for event in self.log.read(after=self.seen):
            self.seen = event.sequence

    def sees(self, sequence: int) -> bool:
        wait_for(lambda: self.seen >= sequence)
        return self.seen == sequence


def test_a_watcher_sees_what_was_there_and_what_another_process_appends(
    place: Place, log: LabelLog
) -> None:
    append(log, "a")
    follower = Follower(log)
    assert follower.sees(1)
    finish(appender(place, "other", 3))
    assert follower.sees(4)


def test_a_watcher_is_called_once_more_after_own_appends_too(log: LabelLog) -> None:
    follower = Follower(log)
    append(log, "a", "b")
    assert follower.sees(2)


def test_a_log_is_watched_by_one(log: LabelLog) -> None:
    log.watch(lambda: None)
    with pytest.raises(RuntimeError, match="watched already"):
        log.watch(lambda: None)


def test_closing_ends_the_thread_even_while_it_calls(place: Place) -> None:
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

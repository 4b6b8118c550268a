"""Logs in both databases: creation, appending, reading, sharing, and idempotency keys."""

import logging
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from subprocess import PIPE, Popen

import numpy as np
import pytest

from service.core.changes import DeleteLabel, PutLabel, UseBundle
from service.core.errors import LogError, LogLocked
from service.core.label_log import FORMAT_VERSION, AnsweredRequest, LabelLog, rows, sqlite
from service.core.label_log import log as label_log
from tests.support.label_logs import Follower, Place, StoredChange, append, event, ids
from tests.support.postgres import with_options
from tests.support.waiting import wait_for

# Creating and opening ---------------------------------------------------------------------


def test_a_log_keeps_its_id(place: Place, tmp_path: Path) -> None:
    with closing(place.open()) as log, closing(Place(tmp_path / "other").open()) as other:
        made = log.id
        assert made != other.id
    assert len(bytes.fromhex(made)) == 16
    with closing(place.open()) as log, closing(place.open(create=False)) as reader:
        assert (log.id, reader.id) == (made, made)
    assert place.tamper("SELECT version, id FROM log_format") == [(FORMAT_VERSION, made)]


@pytest.mark.parametrize(
    ("change", "version"),
    [
        ("UPDATE log_format SET version = 0", "0"),
        ("UPDATE log_format SET version = 2", "2"),
        ("DELETE FROM log_format", "None"),
    ],
)
@pytest.mark.parametrize("create", [True, False])
def test_another_format_version_is_refused_and_left_alone(
    three: Place, change: str, version: str, create: bool
) -> None:
    three.tamper(change)
    message = f"has label log format {version}, and .* reads only format 1: use the version that"
    for _ in range(2):
        with pytest.raises(LogError, match=message):
            three.open(create=create)
    assert three.tamper("SELECT sequence FROM events ORDER BY 1") == [(1,), (2,), (3,)]


def test_a_database_of_another_program_is_refused_and_left_alone(place: Place) -> None:
    place.tamper("CREATE TABLE events (name TEXT)")
    with pytest.raises(LogError, match=r"cannot be opened: .*events.* already exists"):
        place.open()
    assert place.tamper("SELECT * FROM events") == []
    with pytest.raises(LogError, match="holds no label log"):
        place.open(create=False)


def test_opening_a_missing_log_for_reading_creates_nothing(place: Place, tmp_path: Path) -> None:
    with pytest.raises(LogError, match="holds no label log"):
        place.open(create=False)
    assert list(tmp_path.iterdir()) == []
    if isinstance(place.state, str):
        assert place.tamper("SELECT to_regclass('events')") == [(None,)]


def test_a_log_opened_for_reading_is_read_while_others_append(log: LabelLog, place: Place) -> None:
    """A log opened for reading cannot be appended to."""
    append(log, "a")
    with closing(place.open(create=False)) as reader:
        with log.exclusive() as appending:
            assert appending.last == 1
            assert ids(reader) == ["a"]
        append(log, "b")
        assert ids(reader, after=1) == ["b"]
        with pytest.raises(LogError, match=r"cannot be written: .*read-?only"):
            append(reader, "c")
        assert reader.last_sequence() == 2


# Order ------------------------------------------------------------------------------------


def test_a_transaction_may_append_several_times_and_reads_its_own_events(
    place: Place, log: LabelLog
) -> None:
    """It also reads events that another process appended before the transaction."""
    append(log, "a")
    with closing(place.open()) as other:
        append(other, "b")
    with log.exclusive() as appending:
        assert appending.last == 2
        assert ids(appending, after=1) == ["b"]
        appending.append([event("c")], encoder="e")
        appending.append([event("d")], encoder="f")
        assert appending.last == 4
        assert ids(appending, after=1) == ["b", "c", "d"]
        assert ids(log) == ["a", "b"]  # only committed events
    assert [logged.encoder for logged in log.read()] == ["e", "e", "e", "f"]


def test_a_block_that_raises_appends_nothing_and_leaves_no_gap(log: LabelLog) -> None:
    append(log, "a")
    with pytest.raises(ZeroDivisionError), log.exclusive() as appending:
        appending.append([event("b"), event("c")], encoder="e")
        raise ZeroDivisionError
    assert log.last_sequence() == 1
    assert append(log, "b")[0].sequence == 2
    assert ids(log) == ["a", "b"]


def test_events_are_numbered_without_a_gap_also_after_a_restart(three: Place) -> None:
    assert three.ids() == ["a", "b", "c"]
    assert three.ids(after=2) == ["c"]
    assert three.ids(after=3) == []
    with closing(three.open()) as log:
        assert append(log) == []
        assert [logged.sequence for logged in append(log, "d", "e")] == [4, 5]
        for until, expected in ((0, []), (2, [1, 2]), (5, [1, 2, 3, 4, 5]), (9, [1, 2, 3, 4, 5])):
            assert [logged.sequence for logged in log.read(until=until)] == expected
        assert [logged.sequence for logged in log.read(after=1, until=2)] == [2]
    assert three.ids() == ["a", "b", "c", "d", "e"]


def test_events_are_read_bit_for_bit(place: Place) -> None:
    """The second event has no vectors."""
    put = event("a", rows=3)
    deletion = StoredChange(DeleteLabel.kind, {"id": "a"}, np.empty((0, 0), np.float16))
    with closing(place.open()) as log, log.exclusive() as appending:
        appending.append([put, deletion], encoder="fingerprint")
    with closing(place.open()) as log:
        for read, written in zip(log.read(), (put, deletion), strict=True):
            assert (read.kind, read.body) == (written.kind, written.body())
            assert read.encoder == "fingerprint"
            assert read.vectors is not None and read.vectors.dtype == np.float16
            assert read.vectors.tobytes() == written.vectors.tobytes()  # in the order of rows


def test_the_newest_event_of_a_kind_is_found(log: LabelLog) -> None:
    assert log.newest(UseBundle.kind) is None
    append(log, "a", "b", kind=UseBundle.kind)
    append(log, "c")
    newest = log.newest(UseBundle.kind)
    assert newest is not None and (newest.sequence, newest.body["id"]) == (2, "b")


@pytest.mark.parametrize("count", [5, 6, 7])
def test_a_log_longer_than_a_page_is_read_whole(
    place: Place, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    monkeypatch.setattr(rows, "PAGE_EVENTS", 3)
    names = [f"label {number}" for number in range(count)]
    with closing(place.open()) as log:
        append(log, *names)
        with log.exclusive() as appending:
            assert ids(appending, after=1) == names[1:]
        assert ids(log, until=4) == names[:4]
    assert place.ids() == names
    assert place.ids(after=4) == names[4:]


def test_appending_while_a_reader_is_between_two_events(three: Place) -> None:
    with closing(three.open()) as log:
        events = log.read()
        assert next(events).body["id"] == "a"
        append(log, "d")
        assert [logged.body["id"] for logged in events][:2] == ["b", "c"]


# Idempotency keys -------------------------------------------------------------------------


def request(key: str, *, digest: str = "d") -> AnsweredRequest:
    answer = {"labels": [{"id": key, "text": "größer ✓"}], "version": 7}
    return AnsweredRequest(key=key, digest=digest, version=7, answer=answer)


def remember(log: LabelLog, *keys: str) -> None:
    for key in keys:
        with log.exclusive() as within:
            within.remember(request(key))


def answered(log: LabelLog, key: str) -> AnsweredRequest | None:
    with log.exclusive() as within:
        return within.answered(key)


def age(place: Place, **hours: float) -> None:
    """Make idempotency keys older by some hours."""
    for key, its_hours in hours.items():
        statement = "UPDATE requests SET written = written - :seconds WHERE key = :key"
        place.tamper(statement, seconds=its_hours * 3600, key=key)


def test_an_answer_is_found_under_its_key_after_a_restart(place: Place) -> None:
    with closing(place.open()) as log:
        assert answered(log, "a") is None
        remember(log, "a", "b")
    with closing(place.open()) as log:
        assert answered(log, "a") == request("a")
        assert answered(log, "b") == request("b")
        assert answered(log, "A") is None


def test_an_answer_is_kept_with_its_write_or_not_at_all(log: LabelLog) -> None:
    with pytest.raises(ZeroDivisionError), log.exclusive() as within:
        within.append([event("a")], encoder="e")
        within.remember(request("a"))
        assert within.answered("a") == request("a")
        raise ZeroDivisionError
    assert answered(log, "a") is None
    assert log.last_sequence() == 0


def test_a_key_may_be_used_again_after_a_day_and_not_before(place: Place, log: LabelLog) -> None:
    remember(log, "young", "old")
    age(place, young=23.9, old=24.1)
    with pytest.raises(LogError, match="cannot be written"), log.exclusive() as within:
        within.append([event("a")], encoder="e")
        within.remember(request("young", digest="another"))
    assert log.last_sequence() == 0
    assert answered(log, "young") == request("young")
    assert answered(log, "old") is None
    remember(log, "old")
    assert answered(log, "old") == request("old")


def test_expired_keys_are_deleted_a_few_at_a_time(
    place: Place, log: LabelLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(label_log, "FORGOTTEN_AT_ONCE", 2)
    remember(log, "a", "b", "c", "d")
    age(place, a=30, b=26, c=27, d=28)
    remember(log, "e")
    left = "SELECT key FROM requests ORDER BY key"
    assert place.tamper(left) == [("b",), ("c",), ("e",)]  # the two oldest were deleted first
    remember(log, "b")
    assert place.tamper(left) == [("b",), ("e",)]


# Sharing by processes and threads ---------------------------------------------------------


def test_processes_that_append_at_once_agree_on_one_gapless_order(place: Place) -> None:
    """The processes also create the log at the same moment."""
    command = [sys.executable, "-m", "tests.support.label_logs", str(place.state)]
    names = ["p0", "p1", "p2", "p3"]
    processes = [
        Popen([*command, name, "100"], stdin=PIPE, stdout=PIPE, stderr=PIPE, text=True)
        for name in names
    ]
    for process in processes:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        _, errors = process.communicate(timeout=120)
        assert (process.returncode, errors) == (0, "")
    with closing(place.open()) as log:
        events = list(log.read())  # raises if a number is missing
    assert [event.sequence for event in events] == list(range(1, 401))
    for name in names:
        own = [event.body["id"] for event in events if event.body["id"].startswith(f"{name}-")]
        assert own == [f"{name}-{number}" for number in range(100)]


def test_threads_of_one_process_take_turns(log: LabelLog) -> None:
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda _: append(log, "a", "b"), range(20)))
    assert [event.sequence for event in log.read()] == list(range(1, 41))


def test_waiting_too_long_for_the_lock_is_an_error_but_reading_needs_no_lock(
    place: Place, log: LabelLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(log, "a", "b")
    monkeypatch.setattr(sqlite, "LOCK_SECONDS", 0.1)
    if isinstance(place.state, str):
        place = Place(with_options(place.state, "-clock_timeout=100ms"))
    with closing(place.open()) as other:
        events = other.read()
        next(events)
        with log.exclusive():
            with pytest.raises(LogLocked, match="another process held its lock for too long"):
                append(other, "c")
            assert [logged.body["id"] for logged in events] == ["b"]
            assert other.newest(PutLabel.kind) is not None
            assert other.last_sequence() == 2
            place.open().close()  # opening needs no lock either
        assert append(other, "c")[0].sequence == 3


def test_a_watcher_is_also_called_after_appends_of_its_own_log(log: LabelLog) -> None:
    follower = Follower(log)
    append(log, "a", "b")
    assert follower.reaches(2)
    with pytest.raises(RuntimeError, match="watched already"):
        log.watch(lambda newest: None)


@pytest.mark.parametrize("within", [False, True])
def test_closing_ends_the_watching_thread(place: Place, within: bool) -> None:
    """If `within`, the callback closes the log itself."""
    log = place.open()
    threads = []

    def called(newest: int | None) -> None:
        threads.append(threading.current_thread())
        if within:
            log.close()

    log.watch(called)
    wait_for(lambda: threads)
    log.close()
    wait_for(lambda: not threads[0].is_alive())


def test_a_callback_that_raises_is_called_again_and_logged_once(
    log: LabelLog, place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    calls = []

    def fail(newest: int | None) -> None:
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

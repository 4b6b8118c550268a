"""The label log: order, restarts, what it refuses, and how it talks to the disk."""

import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from service.core import label_log
from service.core.errors import LogCorrupt, LogError, LogLocked
from service.core.label_log import PUT_LABEL, LabelLog, NewEvent


def event(name: str, *, rows: int = 1) -> NewEvent:
    vectors = np.random.default_rng(len(name)).standard_normal((rows, 4)).astype(np.float16)
    body = {"id": name, "text": f"text of {name} ✓", "queries": [], "metadata": {}}
    return NewEvent(kind=PUT_LABEL, body=body, vectors=vectors)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[LabelLog]:
    with closing(LabelLog(tmp_path)) as opened:
        yield opened


@pytest.fixture
def three(tmp_path: Path) -> Path:
    """The folder of a closed log with the events a, b and c."""
    with closing(LabelLog(tmp_path)) as log:
        log.append([event("a"), event("b"), event("c")], encoder="e")
    return tmp_path


def tamper(folder: Path, statement: str, *values: Any) -> None:
    """Change the database behind the log's back."""
    with closing(sqlite3.connect(folder / "labels.sqlite")) as connection, connection:
        connection.execute(statement, values)


def ids(folder: Path, *, after: int = 0) -> list[str]:
    with closing(LabelLog(folder)) as log:
        return [found.body["id"] for found in log.read(after=after)]


def test_events_are_numbered_from_one_without_a_gap(log: LabelLog) -> None:
    assert log.last_sequence == 0
    first = log.append([event("a"), event("b")], encoder="e")
    second = log.append([event("c")], encoder="e")
    assert [found.sequence for found in first + second] == [1, 2, 3]
    assert log.last_sequence == 3
    assert log.append([], encoder="e") == []
    assert log.last_sequence == 3


def test_events_come_back_in_order_after_a_restart(three: Path) -> None:
    assert ids(three) == ["a", "b", "c"]
    assert ids(three, after=2) == ["c"]
    assert ids(three, after=3) == []
    with closing(LabelLog(three)) as log:
        assert log.append([event("d")], encoder="e")[0].sequence == 4
    assert ids(three) == ["a", "b", "c", "d"]


def test_body_vectors_and_encoder_come_back_bit_for_bit(tmp_path: Path) -> None:
    written = event("a", rows=3)
    with closing(LabelLog(tmp_path)) as log:
        log.append([written], encoder="fingerprint")
    with closing(LabelLog(tmp_path)) as log:
        (read,) = log.read()
    assert read.body == written.body
    assert (read.kind, read.encoder) == (PUT_LABEL, "fingerprint")
    assert read.vectors.dtype == np.float16
    assert read.vectors.tobytes() == written.vectors.tobytes()  # row by row


def test_a_log_longer_than_a_page_is_read_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(label_log, "_PAGE_EVENTS", 3)
    names = [f"label {number}" for number in range(9)]
    with closing(LabelLog(tmp_path)) as log:
        log.append([event(name) for name in names], encoder="e")
    assert ids(tmp_path) == names
    assert ids(tmp_path, after=4) == names[4:]


# Corruption ------------------------------------------------------------------------------


@pytest.mark.parametrize("missing", [1, 2])
def test_a_missing_event_is_named(three: Path, missing: int) -> None:
    tamper(three, "DELETE FROM events WHERE sequence = ?", missing)
    with pytest.raises(LogCorrupt, match=f"event {missing} is missing"):
        ids(three)


def test_events_before_the_damage_are_still_read(three: Path) -> None:
    tamper(three, "DELETE FROM events WHERE sequence = 2")
    with closing(LabelLog(three)) as log:
        events = log.read()
        assert next(events).body["id"] == "a"
        with pytest.raises(LogCorrupt):
            next(events)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("body", b'{"id": "mine"}'),
        ("body", '{"id": "mine"}'),
        ("body", b""),
        ("vectors", bytes(8)),
        ("vectors", "text"),
        ("encoder", "another"),
        ("encoder", b"\xff"),
        ("kind", "label.delete"),
        ("kind", b"label.put"),
        ("checksum", 0),
        ("checksum", "many"),
    ],
)
def test_an_altered_event_is_named(three: Path, column: str, value: object) -> None:
    tamper(three, f"UPDATE events SET {column} = ? WHERE sequence = 2", value)
    with pytest.raises(LogCorrupt, match="event 2 "):
        ids(three)


def test_two_events_that_changed_places_are_noticed(three: Path) -> None:
    for old, new in ((1, 99), (2, 1), (99, 2)):
        tamper(three, "UPDATE events SET sequence = ? WHERE sequence = ?", new, old)
    with pytest.raises(LogCorrupt, match="event 1 "):
        ids(three)


@pytest.mark.parametrize(
    "content", [b"not a database at all" * 300, b"SQLite format 3\0" + b"x" * 5]
)
def test_a_file_that_is_no_database_is_a_log_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "labels.sqlite").write_bytes(content)
    with pytest.raises(LogError, match=r"labels\.sqlite cannot be opened"):
        LabelLog(tmp_path)
    assert (tmp_path / "labels.sqlite").read_bytes() == content


def test_a_damaged_page_is_a_log_error(tmp_path: Path) -> None:
    with closing(LabelLog(tmp_path)) as log:
        log.append([event(f"label {number}", rows=200) for number in range(40)], encoder="e")
    file = tmp_path / "labels.sqlite"
    content = bytearray(file.read_bytes())
    for page in range(2, len(content) // 4096):
        content[page * 4096 : page * 4096 + 16] = b"\xff" * 16
    file.write_bytes(content)
    with pytest.raises(LogError):
        ids(tmp_path)


def test_somebody_elses_database_is_a_log_error(tmp_path: Path) -> None:
    tamper(tmp_path, "CREATE TABLE events (name TEXT)")
    with pytest.raises(LogError, match=r"labels\.sqlite cannot be opened"):
        LabelLog(tmp_path)


def test_another_format_version_is_refused(three: Path) -> None:
    tamper(three, "UPDATE log_format SET version = 2")
    with pytest.raises(LogError, match="log format 2; this build reads 1"):
        LabelLog(three)


# Folders, locks and the disk -------------------------------------------------------------


def test_a_file_in_the_place_of_the_folder_is_a_log_error(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("")
    with pytest.raises(LogError, match="cannot be used"):
        LabelLog(tmp_path / "state")
    with pytest.raises(LogError, match="cannot be used"):
        LabelLog(tmp_path / "state" / "inner")


@pytest.mark.parametrize("name", ["with space", "what?mode=memory", "50%25", "a#b", "ümlaut"])
def test_a_folder_of_any_name_holds_its_log(tmp_path: Path, name: str) -> None:
    with closing(LabelLog(tmp_path / name)) as log:
        log.append([event("a")], encoder="e")
    assert (tmp_path / name / "labels.sqlite").is_file()
    assert ids(tmp_path / name) == ["a"]


def test_another_process_cannot_open_a_log_that_has_its_writer(
    log: LabelLog, tmp_path: Path
) -> None:
    code = (
        "import sys, pathlib\n"
        "from service.core.errors import LogLocked\n"
        "from service.core.label_log import LabelLog\n"
        "try:\n"
        "    LabelLog(pathlib.Path(sys.argv[1]))\n"
        "except LogLocked as error:\n"
        "    sys.exit(str(error))\n"
    )
    second = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=60
    )
    assert second.returncode == 1
    assert "another process writes to the state folder" in second.stderr
    assert log.append([event("a")], encoder="e")[0].sequence == 1


def test_the_writers_place_is_free_again_after_closing_or_failing(tmp_path: Path) -> None:
    first = LabelLog(tmp_path)
    with pytest.raises(LogLocked):
        LabelLog(tmp_path)
    first.close()
    tamper(tmp_path, "UPDATE log_format SET version = 2")
    for _ in range(2):  # the failing opener must not keep the lock
        with pytest.raises(LogError, match="log format"):
            LabelLog(tmp_path)
    tamper(tmp_path, "UPDATE log_format SET version = 1")
    LabelLog(tmp_path).close()


def test_commits_are_synced_in_wal_mode(log: LabelLog) -> None:
    full = 2
    with log._engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == full


def test_an_append_that_fails_writes_nothing_and_the_next_one_succeeds(
    log: LabelLog, tmp_path: Path
) -> None:
    log.append([event("a")], encoder="e")
    tamper(
        tmp_path,
        "CREATE TRIGGER refuse BEFORE INSERT ON events WHEN NEW.sequence = 3"
        " BEGIN SELECT RAISE(ABORT, 'disk full'); END",
    )
    with pytest.raises(LogError, match="cannot be written: disk full"):
        log.append([event("b"), event("c")], encoder="e")
    assert log.last_sequence == 1
    assert [found.body["id"] for found in log.read()] == ["a"]
    tamper(tmp_path, "DROP TRIGGER refuse")
    assert [found.sequence for found in log.append([event("b"), event("c")], encoder="e")] == [2, 3]
    assert [found.body["id"] for found in log.read()] == ["a", "b", "c"]


def test_an_event_that_someone_else_wrote_meanwhile_is_not_overwritten(
    log: LabelLog, tmp_path: Path
) -> None:
    row = (1, PUT_LABEL, b"{}", b"", "e", 0, 0.0)
    tamper(tmp_path, "INSERT INTO events VALUES (?, ?, ?, ?, ?, ?, ?)", *row)
    with pytest.raises(LogError, match="cannot be written"):
        log.append([event("a")], encoder="e")

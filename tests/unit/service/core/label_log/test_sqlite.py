"""The log in a folder: names, files that are not a log, signals, and the newest-event note."""

import shutil
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import orjson
import pytest

from service.core.errors import LogError
from service.core.label_log import LabelLog, newest_note, open_log, sqlite
from service.core.label_log.newest_note import FILE_NAME as NOTE
from service.core.label_log.sqlite import SqliteDatabase
from tests.support.label_logs import Place, append
from tests.support.waiting import wait_for


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "state")


@pytest.mark.parametrize("name", ["with space", "what?mode=memory", "50%25", "a#b", "ümlaut"])
def test_a_folder_of_any_name_is_created_and_holds_its_log(tmp_path: Path, name: str) -> None:
    """The folder may be given as a `str`."""
    folder = tmp_path / "made" / name
    with closing(open_log(str(folder))) as log:
        assert log.place == str(folder / "labels.sqlite")
    assert [entry.name for entry in folder.iterdir()] == ["labels.sqlite"]  # no lock, no journal
    with closing(open_log(folder)) as log:
        append(log, "a")
    with closing(open_log(folder, create=False)) as log:
        assert log.last_sequence() == 1


def test_a_relative_folder_is_found_after_a_change_of_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with closing(open_log("state")) as log:
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        append(log, "a")
    assert Place(tmp_path / "state").ids() == ["a"]


def test_a_file_in_the_place_of_the_folder_or_the_reverse_is_a_log_error(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("")
    for folder in (tmp_path / "state", tmp_path / "state" / "inner"):
        with pytest.raises(LogError, match=f"state folder {folder} cannot be used: "):
            open_log(folder)
    (tmp_path / "labels.sqlite").mkdir()
    with pytest.raises(LogError, match=r"labels\.sqlite cannot be opened: unable to open"):
        open_log(tmp_path)


def test_a_log_that_may_only_be_read_is_no_log_to_serve_from(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.open().close()
    monkeypatch.setattr(sqlite.os, "access", lambda _path, _mode: False)  # root may do anything
    with pytest.raises(LogError, match=r"labels\.sqlite cannot be written: no permission"):
        place.open()
    with closing(place.open(create=False)) as log:
        assert log.last_sequence() == 0


@pytest.mark.parametrize(
    "content", [b"not a database at all" * 300, b"SQLite format 3\0" + b"x" * 5]
)
@pytest.mark.parametrize("create", [True, False])
def test_a_file_that_is_no_database_is_a_log_error(
    tmp_path: Path, content: bytes, create: bool
) -> None:
    (tmp_path / "labels.sqlite").write_bytes(content)
    with pytest.raises(LogError, match=r"labels\.sqlite cannot be opened: file is not a database"):
        open_log(tmp_path, create=create)
    assert (tmp_path / "labels.sqlite").read_bytes() == content


def test_commits_are_synced_in_wal_mode(place: Place, tmp_path: Path) -> None:
    """A log that is not in WAL mode is switched back to it."""
    place.open().close()
    place.tamper("PRAGMA journal_mode=DELETE")
    database = SqliteDatabase(tmp_path / "state", create=True)
    full = 2
    with closing(database), database.exclusive() as connection:
        pragma = connection.exec_driver_sql
        assert pragma("PRAGMA journal_mode").scalar() == "wal"
        assert pragma("PRAGMA synchronous").scalar() == full


def test_the_newest_event_of_a_kind_is_found_by_an_index(place: Place, log: LabelLog) -> None:
    plan = place.tamper(
        "EXPLAIN QUERY PLAN SELECT * FROM events WHERE kind = 'a' ORDER BY sequence DESC LIMIT 1"
    )
    assert [row.detail for row in plan] == ["SEARCH events USING INDEX events_by_kind (kind=?)"]


def test_signals_come_only_for_commits(log: LabelLog, tmp_path: Path) -> None:
    stop, database = threading.Event(), SqliteDatabase(tmp_path / "state", create=False)
    with closing(database), closing(database.signals(stop)) as signals:
        next(signals)  # the first signal comes at once
        threading.Timer(0.2, lambda: append(log, "a")).start()
        next(signals)
        assert log.last_sequence() == 1
        threading.Timer(0.2, stop.set).start()
        assert list(signals) == []


def test_a_disk_without_wal_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "as_uri", lambda _path: "file::memory:")
    with pytest.raises(LogError, match="its disk does not support WAL mode"):
        open_log(tmp_path)


# The note: a start notices if the file is missing or older than the newest event --------------


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A state folder whose log has three events; next to it, `older.sqlite` has two."""
    folder = tmp_path / "state"
    with closing(open_log(folder)) as log:
        append(log, "a", "b")
    shutil.copy(folder / "labels.sqlite", tmp_path / "older.sqlite")
    with closing(open_log(folder)) as log:
        append(log, "c")
    return folder


def note_of(state: Path) -> dict[str, object]:
    return orjson.loads((state / NOTE).read_bytes())


def test_the_note_of_a_log_that_was_killed_is_a_second_old_at_most(state: Path) -> None:
    log = open_log(state)
    append(log, *"de")  # the first write notes the newest event at once
    append(log, "f")  # later writes note nothing for a second
    chain = log.link_at(5).chain.hex()
    assert note_of(state) == {"log": log.id, "sequence": 5, "chain": chain}
    with closing(open_log(state)) as other:  # after a kill, the log is ahead of the note
        assert other.last_sequence() == 6
    wait_for(lambda: note_of(state)["sequence"] == 6)  # even without another write or a close
    log.close()


def test_a_process_that_wrote_earlier_leaves_the_later_note(state: Path) -> None:
    first, second = open_log(state), open_log(state)
    append(first, "d")
    append(second, "e")
    second.close()
    first.close()
    assert note_of(state)["sequence"] == 5
    assert not list(state.glob(".labels.newest*"))


def an_older_copy(state: Path) -> None:
    (state.parent / "older.sqlite").replace(state / "labels.sqlite")


def an_older_copy_that_went_on(state: Path) -> None:
    an_older_copy(state)
    note = (state / NOTE).rename(state / "aside")
    with closing(open_log(state)) as log:
        append(log, "another c", "d")
    note.replace(state / NOTE)


def no_log(state: Path) -> None:
    (state / "labels.sqlite").unlink()


def another_log(state: Path) -> None:
    with closing(open_log(state.parent / "another")) as log:
        append(log, "x", "y", "z", "w")
    (state.parent / "another" / "labels.sqlite").replace(state / "labels.sqlite")


@pytest.mark.parametrize(
    ("now", "said", "last"),
    [
        (an_older_copy, "does not hold it", 2),
        (an_older_copy_that_went_on, "does not hold it", 4),
        (no_log, "is gone", 0),
        (another_log, "is another log", 4),
    ],
)
def test_another_log_is_refused_until_the_note_is_removed_or_the_log_is_back(
    state: Path, now: Callable[[Path], None], said: str, last: int
) -> None:
    whole = shutil.copy(state / "labels.sqlite", state.parent / "whole.sqlite")
    now(state)
    with pytest.raises(LogError, match=f"{said}, but event 3 was written here: put the file that"):
        open_log(state)

    if last:  # reading needs no note
        with closing(open_log(state, create=False)) as log:
            assert log.last_sequence() == last
    note = (state / NOTE).rename(state / "aside")
    with closing(open_log(state)) as log:
        assert log.last_sequence() == last
    note.replace(state / NOTE)
    shutil.copy(whole, state / "labels.sqlite")
    with closing(open_log(state)) as log:
        assert log.last_sequence() == 3


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b"\xff\x00", b'{"log": "x"}'])
def test_a_note_that_cannot_be_read_stops_nothing(state: Path, content: bytes) -> None:
    (state / NOTE).write_bytes(content)
    with closing(open_log(state)) as log:
        assert log.last_sequence() == 3


def test_a_note_that_cannot_be_written_fails_no_write(state: Path) -> None:
    (state / NOTE).unlink()
    (state / NOTE).mkdir()
    with closing(open_log(state)) as log:
        append(log, "d")
        assert log.last_sequence() == 4


def test_a_closed_log_notes_nothing_later(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(newest_note, "SECONDS", 0.2)
    log = open_log(state)
    append(log, "d")
    append(log, "e")
    log.close()
    (state / NOTE).unlink()
    time.sleep(2 * newest_note.SECONDS)
    assert not (state / NOTE).exists()

"""A start notices that the log's file is gone or older than what was written."""

import shutil
import time
from contextlib import closing
from pathlib import Path

import orjson
import pytest

from service.core.errors import LogError
from service.core.label_log import open_log
from service.core.label_log.newest_note import FILE_NAME, SECONDS
from tests.support.label_logs import append
from tests.support.waiting import wait_for


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A state folder whose log holds three events, and a copy that holds two."""
    folder = tmp_path / "state"
    with closing(open_log(folder)) as log:
        append(log, "a", "b")
    shutil.copy(folder / "labels.sqlite", tmp_path / "older.sqlite")
    with closing(open_log(folder)) as log:
        append(log, "c")
    return folder


def note_of(state: Path) -> dict[str, object]:
    return orjson.loads((state / FILE_NAME).read_bytes())


def test_the_note_names_the_newest_event_of_a_closed_log(state: Path) -> None:
    with closing(open_log(state)) as log:
        chain = log.link_at(3).chain.hex()
        assert note_of(state) == {"log": log.id, "sequence": 3, "chain": chain}


def test_the_note_of_a_log_that_was_killed_is_a_second_old_at_most(state: Path) -> None:
    log = open_log(state)
    append(log, "d")  # the first write notes its event at once
    append(log, "e")  # and the next one none for a second
    assert note_of(state)["sequence"] == 4
    with closing(open_log(state)) as other:  # as after a kill: the log has gone further
        assert other.last_sequence() == 5
    log.close()


def test_a_process_that_wrote_earlier_leaves_the_later_note(state: Path) -> None:
    first, second = open_log(state), open_log(state)
    append(first, "d")
    append(second, "e")
    second.close()
    first.close()
    assert note_of(state)["sequence"] == 5
    assert not list(state.glob(".labels.newest*"))


def test_an_older_copy_is_refused_until_the_note_is_removed(state: Path, tmp_path: Path) -> None:
    (tmp_path / "older.sqlite").replace(state / "labels.sqlite")

    with pytest.raises(LogError, match=r"does not hold it, but event 3 was written here: put the"):
        open_log(state)

    (state / FILE_NAME).unlink()
    with closing(open_log(state)) as log:
        assert log.last_sequence() == 2


def test_an_older_copy_that_went_on_by_itself_is_refused(state: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "older.sqlite").replace(elsewhere / "labels.sqlite")
    with closing(open_log(elsewhere)) as log:
        append(log, "another c", "d")
    (elsewhere / "labels.sqlite").replace(state / "labels.sqlite")

    with pytest.raises(LogError, match=r"does not hold it, but event 3 was written here"):
        open_log(state)


def test_a_log_that_is_gone_is_not_created_anew(state: Path, tmp_path: Path) -> None:
    (state / "labels.sqlite").rename(tmp_path / "aside")

    with pytest.raises(LogError, match=r"is gone, but event 3 was written here"):
        open_log(state)

    (tmp_path / "aside").rename(state / "labels.sqlite")
    with closing(open_log(state)) as log:
        assert log.last_sequence() == 3


def test_another_log_is_refused(state: Path, tmp_path: Path) -> None:
    with closing(open_log(tmp_path / "another")) as log:
        append(log, "x", "y", "z", "w")
    (tmp_path / "another" / "labels.sqlite").replace(state / "labels.sqlite")

    with pytest.raises(LogError, match=r"is another log, but event 3 was written here"):
        open_log(state)


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b"\xff\x00", b'{"log": "x"}'])
def test_a_note_that_cannot_be_read_stops_nothing(state: Path, content: bytes) -> None:
    (state / FILE_NAME).write_bytes(content)
    with closing(open_log(state)) as log:
        assert log.last_sequence() == 3


def test_a_log_is_read_without_its_note(state: Path, tmp_path: Path) -> None:
    (tmp_path / "older.sqlite").replace(state / "labels.sqlite")
    with closing(open_log(state, create=False)) as log:
        assert log.last_sequence() == 2


def test_a_note_that_cannot_be_written_fails_no_write(state: Path) -> None:
    (state / FILE_NAME).unlink()
    (state / FILE_NAME).mkdir()
    with closing(open_log(state)) as log:
        append(log, "d")
        assert log.last_sequence() == 4


def test_the_note_follows_a_burst_within_a_second(state: Path) -> None:
    """No further write need come, and no close."""
    log = open_log(state)
    append(log, *"defg")
    append(log, "h")
    assert note_of(state)["sequence"] == 7
    wait_for(lambda: note_of(state)["sequence"] == 8)
    log.close()


def test_a_closed_log_notes_nothing_later(state: Path) -> None:
    log = open_log(state)
    append(log, "d")
    append(log, "e")
    log.close()
    (state / FILE_NAME).unlink()
    time.sleep(1.2 * SECONDS)
    assert not (state / FILE_NAME).exists()

"""A start notices if the log's file is missing or older than the newest event in the note."""

import shutil
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import orjson
import pytest

from service.core.errors import LogError
from service.core.label_log import newest_note, open_log
from service.core.label_log.newest_note import FILE_NAME
from tests.support.label_logs import append
from tests.support.waiting import wait_for


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
    return orjson.loads((state / FILE_NAME).read_bytes())


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
    note = (state / FILE_NAME).rename(state / "aside")
    with closing(open_log(state)) as log:
        append(log, "another c", "d")
    note.replace(state / FILE_NAME)


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
    note = (state / FILE_NAME).rename(state / "aside")
    with closing(open_log(state)) as log:
        assert log.last_sequence() == last
    note.replace(state / FILE_NAME)
    shutil.copy(whole, state / "labels.sqlite")
    with closing(open_log(state)) as log:
        assert log.last_sequence() == 3


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b"\xff\x00", b'{"log": "x"}'])
def test_a_note_that_cannot_be_read_stops_nothing(state: Path, content: bytes) -> None:
    (state / FILE_NAME).write_bytes(content)
    with closing(open_log(state)) as log:
        assert log.last_sequence() == 3


def test_a_note_that_cannot_be_written_fails_no_write(state: Path) -> None:
    (state / FILE_NAME).unlink()
    (state / FILE_NAME).mkdir()
    with closing(open_log(state)) as log:
        append(log, "d")
        assert log.last_sequence() == 4


def test_a_closed_log_notes_nothing_later(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(newest_note, "SECONDS", 0.2)
    log = open_log(state)
    append(log, "d")
    append(log, "e")
    log.close()
    (state / FILE_NAME).unlink()
    time.sleep(2 * newest_note.SECONDS)
    assert not (state / FILE_NAME).exists()

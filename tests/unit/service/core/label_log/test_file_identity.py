"""Files of a SQLite log that are removed or replaced while processes have it open."""

import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from service.core.errors import LogReplaced
from service.core.label_log import LabelLog
from tests.support.label_logs import Place, append

# Loses `-shm` while another process writes, is asked to write, and ends as a service does.
LOSING = """
import pathlib, subprocess, sys
from service.core.errors import LogReplaced
from service.core.label_log import open_log
from tests.support.label_logs import append

state = sys.argv[1]
log = open_log(state)
append(log, "a", "b")
pathlib.Path(state, "labels.sqlite-shm").unlink()
other = [sys.executable, "-m", "tests.support.label_logs", state, "other", "1"]
subprocess.run(other, input="go", text=True, check=True, stdout=subprocess.DEVNULL)
if "write" in sys.argv:
    try:
        append(log, "lost")
    except LogReplaced as error:
        print(error)
if "close" in sys.argv:
    log.close()
"""


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture
def log(place: Place) -> LabelLog:
    """A log with one event; the test closes it."""
    log = place.open()
    append(log, "a")
    return log


def of_path(place: Place, suffix: str) -> Path:
    assert isinstance(place.state, Path)
    return place.state / f"labels.sqlite{suffix}"


@pytest.mark.parametrize("then", [["write"], ["close"], ["write", "close"]])
def test_what_another_process_writes_after_shm_was_removed_is_kept(
    place: Place, then: list[str]
) -> None:
    """Without `-shm`, two processes no longer take turns: they wrote over each other's events."""
    command = [sys.executable, "-c", LOSING, str(place.state), *then]
    ended = subprocess.run(command, check=True, capture_output=True, text=True)
    refused = "labels.sqlite-shm was removed or replaced while it was open" in ended.stdout
    assert (refused, ended.stderr) == ("write" in then, "")
    assert place.ids() == ["a", "b", "other-0"]


@pytest.mark.parametrize("suffix", ["", "-wal", "-shm"])
def test_a_log_without_one_of_its_files_is_not_written(
    log: LabelLog, place: Place, suffix: str
) -> None:
    path = of_path(place, suffix)
    path.rename(path.with_name("aside"))
    with pytest.raises(LogReplaced):
        append(log, "b")
    assert not log.in_place

    path.with_name("aside").rename(path)
    append(log, "c")
    assert log.in_place
    log.close()
    assert place.ids() == ["a", "c"]


def test_events_of_a_removed_wal_are_saved_when_the_log_is_closed(
    log: LabelLog, place: Place
) -> None:
    of_path(place, "-wal").unlink()
    log.close()
    assert place.ids() == ["a"]


@pytest.mark.parametrize("suffix", ["", "-wal", "-shm"])
def test_closing_a_log_touches_no_file_in_the_place_of_its_own(
    log: LabelLog, place: Place, suffix: str
) -> None:
    of_path(place, suffix).unlink()
    of_path(place, suffix).write_bytes(b"of another process")
    log.close()
    assert of_path(place, suffix).read_bytes() == b"of another process"
    assert of_path(place, "-wal").exists()


def test_closing_a_whole_log_leaves_one_file_and_the_note(log: LabelLog, place: Place) -> None:
    with closing(place.open()) as other:
        append(other, "b")
    log.close()
    assert isinstance(place.state, Path)
    assert {path.name for path in place.state.iterdir()} == {"labels.sqlite", "labels.newest"}

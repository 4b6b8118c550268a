"""Another program writes to, removes or replaces the files of an open SQLite log."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import orjson
import pytest

from service.core.errors import LogError, LogReplaced
from service.core.label_log import LabelLog, open_log, sqlite_files
from service.core.label_log.newest_note import FILE_NAME as NOTE
from service.core.label_log.sqlite_files import TICK_NS, SqliteFiles
from tests.support.label_logs import Place, append, damage_page, event

# Program: removes `-shm` of three open logs and lets another process write to them. Then it tries
# to write to the first two, closes the last two, and ends normally.
LOSING = """
import pathlib, subprocess, sys
from service.core.errors import LogReplaced
from service.core.label_log import open_log
from tests.support.label_logs import append

states = sys.argv[1:]
logs = [open_log(state) for state in states]
for state, log in zip(states, logs):
    append(log, "a", "b")
    pathlib.Path(state, "labels.sqlite-shm").unlink()
    other = [sys.executable, "-m", "tests.support.label_logs", state, "other", "1"]
    subprocess.run(other, input=b"go", stdout=subprocess.DEVNULL, check=True)
for log in logs[:2]:
    try:
        append(log, "lost")
    except LogReplaced as error:
        print(error)
for log in logs[1:]:
    log.close()
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "labels.sqlite"


@pytest.fixture
def log(tmp_path: Path) -> Iterator[LabelLog]:
    """A log whose 300 events all lie in its main file."""
    with closing(open_log(tmp_path)) as log:
        fill(log, until=300)
        log.touched()
        yield log


@pytest.fixture
def older(tmp_path: Path, log: LabelLog, file: Path) -> Path:
    """A copy of the log with 300 events."""
    return shutil.copyfile(file, tmp_path / "older")


def fill(log: LabelLog, *, until: int, in_file: bool = True) -> None:
    """Append events up to number `until`; if `in_file`, move all events into the main file."""
    append(log, *(f"label {number}" for number in range(log.last_sequence(), until)))
    if in_file:
        log.shrink()


def put_over(file: Path, copy: Path) -> None:
    """Copy in another process: if this one opened and closed the file, it would lose its locks."""
    subprocess.run(["cp", copy, file], check=True)


def events_after_a_restart(state: Path) -> int:
    """Open the log again, verify all events, and return their number."""
    with closing(open_log(state, create=False)) as anew:
        return sum(1 for _ in anew.read())


@pytest.mark.parametrize("in_file", [301, 320, 600])
@pytest.mark.parametrize("in_wal", [0, 1, 40])
def test_a_write_that_is_acknowledged_after_a_copy_is_found(
    log: LabelLog, file: Path, older: Path, in_file: int, in_wal: int
) -> None:
    """If the WAL holds all that the copy lacks, nothing is missing and the write may succeed."""
    fill(log, until=in_file)
    fill(log, until=in_file + in_wal, in_file=False)
    put_over(file, older)

    try:
        append(log, "late")
    except LogReplaced:
        assert not log.in_place
    else:
        assert events_after_a_restart(file.parent) == in_file + in_wal + 1
    assert log.touched()


@pytest.mark.parametrize(
    "command", [["cp", "OLDER", "FILE"], ["truncate", "--size=0", "FILE"]], ids=["older", "empty"]
)
def test_no_write_is_acknowledged_over_another_content_until_a_whole_copy_is_back(
    log: LabelLog, file: Path, older: Path, tmp_path: Path, command: list[str]
) -> None:
    fill(log, until=600)
    whole = shutil.copyfile(file, tmp_path / "whole")
    names = {"OLDER": str(older), "FILE": str(file)}
    subprocess.run([names.get(word, word) for word in command], check=True)
    for _ in range(3):
        with pytest.raises(LogReplaced, match="was written to by another program while it was"):
            append(log, "refused")
        assert not log.in_place
    note = orjson.loads((tmp_path / NOTE).read_bytes())
    assert note["sequence"] == 600  # at once: the process may be killed before it is closed

    put_over(file, whole)
    assert log.in_place
    assert append(log, "late")[0].sequence == 601
    assert events_after_a_restart(file.parent) == 601


def test_closing_over_an_older_copy_leaves_the_wal(log: LabelLog, file: Path, older: Path) -> None:
    fill(log, until=600)
    fill(log, until=610, in_file=False)
    put_over(file, older)
    with pytest.raises(LogReplaced):
        append(log, "late")
    wal = file.with_name("labels.sqlite-wal").read_bytes()
    log.close()
    assert file.read_bytes() == older.read_bytes()
    assert file.with_name("labels.sqlite-wal").read_bytes() == wal


@pytest.mark.parametrize("write", [True, False])
def test_a_damaged_page_that_no_commit_reads_is_worth_a_look(
    log: LabelLog, file: Path, write: bool
) -> None:
    damage_page(file, holding=b"text of label 100")
    if write:
        assert append(log, "late")[0].sequence == 301
    assert log.touched()
    assert not log.touched()  # not since the last call
    with pytest.raises(LogError):
        events_after_a_restart(file.parent)


def test_checkpoints_are_no_writes_of_other_programs(log: LabelLog, file: Path) -> None:
    """This holds for checkpoints of this process and of another one."""
    times, large = set(), event("large", rows=5000)  # about ten pages
    with closing(open_log(file.parent)) as other:
        for number in range(400):
            with (log if number % 3 else other).exclusive() as appending:
                appending.append([large], encoder="e")
            times.add(file.stat().st_mtime_ns)
            if number % 10 == 9:
                assert not log.touched() and not other.touched()
    assert len(times) > 3


def test_nothing_is_read_anew_between_checkpoints(
    log: LabelLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    time.sleep(2 * TICK_NS / 1e9)
    append(log, "a")  # reads what `shrink` has changed
    monkeypatch.setattr(SqliteFiles, "require_events", None)
    append(log, "b")


def test_a_copy_that_has_the_same_time_of_writing_is_noticed(
    log: LabelLog, file: Path, older: Path
) -> None:
    fill(log, until=600)
    append(log, "read")
    stat = os.stat(file)
    put_over(file, older)
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    with pytest.raises(LogReplaced):
        append(log, "late")


def test_a_copy_within_a_tick_of_the_clock_is_noticed_after_it(
    log: LabelLog, file: Path, older: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until the tick ends, the copy has the same file times as the file that was read last."""
    fill(log, until=600)
    monkeypatch.setattr(sqlite_files, "TICK_NS", 10**9)
    look, looks = SqliteFiles.look, []
    monkeypatch.setattr(SqliteFiles, "look", lambda *of: looks.append(look(*of)) or looks[-1])
    append(log, "read")
    monkeypatch.setattr(SqliteFiles, "look", lambda *_: looks[-1])
    put_over(file, older)
    monkeypatch.setattr(sqlite_files, "TICK_NS", 0)
    with pytest.raises(LogReplaced):
        append(log, "late")


@pytest.fixture
def begun(tmp_path: Path) -> LabelLog:
    """A log with one event; the test closes it."""
    log = open_log(tmp_path)
    append(log, "a")
    return log


def test_what_another_process_writes_after_shm_was_removed_is_kept(tmp_path: Path) -> None:
    """Without `-shm`, two processes share no lock and could overwrite each other's events."""
    states = [tmp_path / name for name in ("written", "written-and-closed", "closed")]
    command = [sys.executable, "-c", LOSING, *states]
    ended = subprocess.run(command, check=True, capture_output=True, text=True)
    refused = "labels.sqlite-shm was removed or replaced while it was open"
    assert (ended.stdout.count(refused), ended.stderr) == (2, "")
    assert [Place(state).ids() for state in states] == [["a", "b", "other-0"]] * 3


@pytest.mark.parametrize("name", ["labels.sqlite", "labels.sqlite-wal", "labels.sqlite-shm"])
def test_a_log_without_one_of_its_files_is_not_written(
    begun: LabelLog, tmp_path: Path, name: str
) -> None:
    (tmp_path / name).rename(tmp_path / "aside")
    with pytest.raises(LogReplaced):
        append(begun, "b")
    assert not begun.in_place

    (tmp_path / "aside").rename(tmp_path / name)
    append(begun, "c")
    assert begun.in_place
    begun.close()
    assert Place(tmp_path).ids() == ["a", "c"]


def test_events_of_a_removed_wal_are_saved_when_the_log_is_closed(
    begun: LabelLog, tmp_path: Path
) -> None:
    (tmp_path / "labels.sqlite-wal").unlink()
    begun.close()
    assert Place(tmp_path).ids() == ["a"]


@pytest.mark.parametrize("name", ["labels.sqlite", "labels.sqlite-wal", "labels.sqlite-shm"])
def test_closing_a_log_touches_no_file_in_the_place_of_its_own(
    begun: LabelLog, tmp_path: Path, name: str
) -> None:
    (tmp_path / name).unlink()
    (tmp_path / name).write_bytes(b"of another process")
    begun.close()
    assert (tmp_path / name).read_bytes() == b"of another process"
    assert (tmp_path / "labels.sqlite-wal").exists()


def test_closing_a_whole_log_leaves_one_file_and_the_note(begun: LabelLog, tmp_path: Path) -> None:
    with closing(open_log(tmp_path)) as other:
        append(other, "b")
    begun.close()
    assert {path.name for path in tmp_path.iterdir()} == {"labels.sqlite", "labels.newest"}

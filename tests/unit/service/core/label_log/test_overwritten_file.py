"""Another program writes to the file of an open SQLite log: every connection has its own pages."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from service.core.errors import LogError, LogReplaced
from service.core.label_log import LabelLog, main_file, open_log
from service.core.label_log.file_contents import FileContents
from service.core.label_log.main_file import TICK_NS, MainFile
from tests.support.label_logs import append

PAGE = 4096

# Writes the events, lets an older copy be put over the file, tries three writes, and dies.
DYING = """
import os, shutil, sys
from service.core.label_log import open_log
from tests.support.label_logs import append

state, copy = sys.argv[1:]
log = open_log(state)
for number in range(300):
    append(log, f"label {number}")
log.shrink()
shutil.copyfile(f"{state}/labels.sqlite", copy)
for number in range(300, 600):
    append(log, f"label {number}")
log.shrink()
os.system(f"cp {copy} {state}/labels.sqlite")
for number in range(600, 603):
    try:
        print("acknowledged", append(log, f"label {number}")[0].sequence)
    except Exception as error:
        print(type(error).__name__)
sys.stdout.flush()
os._exit(0)
"""


@pytest.fixture
def log(tmp_path: Path) -> Iterator[LabelLog]:
    """A log whose 300 events all lie in its main file."""
    log = open_log(tmp_path / "state")
    fill(log, until=300)
    log.shrink()
    log.touched()
    yield log
    log.close()


@pytest.fixture
def file(tmp_path: Path, log: LabelLog) -> Path:
    return tmp_path / "state" / "labels.sqlite"


@pytest.fixture
def older(tmp_path: Path, file: Path) -> Path:
    """A copy of the log with 300 events."""
    return shutil.copyfile(file, tmp_path / "older")


def fill(log: LabelLog, *, until: int) -> None:
    for number in range(log.last_sequence(), until):
        append(log, f"label {number}")


def put_over(file: Path, copy: Path) -> None:
    """By another process: one that has the file open loses its locks when it closes it."""
    subprocess.run(["cp", copy, file], check=True)


def damage(file: Path, *, holding: bytes) -> None:
    """Overwrite the page that holds these bytes."""
    seek = f"seek={file.read_bytes().index(holding) // PAGE}"
    command = ["dd", f"of={file}", seek, f"bs={PAGE}", "conv=notrunc", "status=none"]
    subprocess.run(command, input=b"\xff" * PAGE, check=True)


def events_after_a_restart(state: Path) -> int:
    """How many events a new process finds, each verified."""
    with closing(open_log(state, create=False)) as anew:
        return sum(1 for _ in anew.read())


def test_no_write_is_acknowledged_over_an_older_copy(tmp_path: Path) -> None:
    state, copy = tmp_path / "state", tmp_path / "copy"
    command = [sys.executable, "-c", DYING, state, copy]
    ended = subprocess.run(command, check=True, capture_output=True, text=True)
    assert ended.stdout.splitlines() == ["LogReplaced"] * 3

    with pytest.raises(LogError, match="does not hold it, but event 600 was written here"):
        open_log(state)


@pytest.mark.parametrize("in_file", [301, 320, 600])
@pytest.mark.parametrize("in_wal", [0, 1, 40])
def test_a_write_that_is_acknowledged_after_a_copy_is_found(
    log: LabelLog, file: Path, older: Path, in_file: int, in_wal: int
) -> None:
    """What the copy lacks may lie in the WAL: then nothing is missing."""
    fill(log, until=in_file)
    log.shrink()
    fill(log, until=in_file + in_wal)
    put_over(file, older)

    try:
        append(log, "late")
    except LogReplaced:
        assert not log.in_place
    else:
        assert events_after_a_restart(file.parent) == in_file + in_wal + 1
    assert log.touched()


def test_writes_go_on_once_a_whole_copy_is_back(
    log: LabelLog, file: Path, older: Path, tmp_path: Path
) -> None:
    fill(log, until=600)
    log.shrink()
    whole = shutil.copyfile(file, tmp_path / "whole")
    put_over(file, older)
    for _ in range(2):
        with pytest.raises(LogReplaced, match="was written to by another program while it was"):
            append(log, "refused")
        assert not log.in_place

    put_over(file, whole)
    assert log.in_place
    assert append(log, "late")[0].sequence == 601
    assert events_after_a_restart(file.parent) == 601


def test_an_empty_file_in_its_place_is_not_written(log: LabelLog, file: Path) -> None:
    subprocess.run(["truncate", "--size=0", file], check=True)
    with pytest.raises(LogReplaced, match="was written to by another program"):
        append(log, "late")
    assert not log.in_place


def test_closing_over_an_older_copy_leaves_the_wal(log: LabelLog, file: Path, older: Path) -> None:
    fill(log, until=600)
    log.shrink()
    fill(log, until=610)
    put_over(file, older)
    with pytest.raises(LogReplaced):
        append(log, "late")
    wal = file.with_name("labels.sqlite-wal").read_bytes()
    log.close()
    assert file.read_bytes() == older.read_bytes()
    assert file.with_name("labels.sqlite-wal").read_bytes() == wal


def test_a_damaged_page_that_no_commit_reads_is_worth_a_look(log: LabelLog, file: Path) -> None:
    damage(file, holding=b"text of label 100")
    assert append(log, "late")[0].sequence == 301
    assert log.touched()
    assert not log.touched()  # since it was last asked
    with pytest.raises(LogError):
        events_after_a_restart(file.parent)


def test_damage_is_worth_a_look_without_a_write(log: LabelLog, file: Path) -> None:
    damage(file, holding=b"text of label 100")
    assert log.touched()
    assert not log.touched()


def test_checkpoints_are_no_writes_of_other_programs(log: LabelLog, file: Path) -> None:
    """Neither this process's own nor another one's."""
    sizes = set()
    with closing(open_log(file.parent)) as other:
        for number in range(1500):
            append(log if number % 3 else other, f"more {number}")
            sizes.add(file.stat().st_mtime_ns)
            if number % 10 == 0:
                assert not log.touched() and not other.touched()
        assert not log.touched() and not other.touched()
    assert len(sizes) > 3


def test_nothing_is_read_anew_between_checkpoints(
    log: LabelLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    time.sleep(2 * TICK_NS / 1e9)
    append(log, "a")  # reads what `shrink` has changed
    monkeypatch.setattr(FileContents, "_require_events", None)
    append(log, "b")


def test_a_copy_that_has_the_same_time_of_writing_is_noticed(
    log: LabelLog, file: Path, older: Path
) -> None:
    fill(log, until=600)
    log.shrink()
    append(log, "read")
    stat = os.stat(file)
    put_over(file, older)
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    with pytest.raises(LogReplaced):
        append(log, "late")


def test_a_copy_within_a_tick_of_the_clock_is_noticed_after_it(
    log: LabelLog, file: Path, older: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file then has the times that it had when it was last read."""
    fill(log, until=600)
    log.shrink()
    monkeypatch.setattr(main_file, "TICK_NS", 10**9)
    append(log, "read")
    now = MainFile.look(log._database._contents._file)
    monkeypatch.setattr(MainFile, "look", lambda _: now)
    put_over(file, older)
    monkeypatch.setattr(main_file, "TICK_NS", 0)
    with pytest.raises(LogReplaced):
        append(log, "late")

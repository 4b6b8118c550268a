"""Parts of an interrupted run: kept, continued by the same job only, and gone at the end."""

from dataclasses import replace
from pathlib import Path

import pytest

from service.bulk.formats import JsonLines
from service.bulk.work_folder import JOB, Job, WorkFolder
from service.core.errors import Busy, InvalidConfig, InvalidData

MADE = Job(
    bundle="b",
    state="",
    input="i",
    top_k=10,
    depth=100,
    memorization=0.5,
    candidates=0,
    explain=False,
    part_rows=2,
    version=7,
)


@pytest.fixture
def folder(tmp_path: Path) -> WorkFolder:
    return WorkFolder(tmp_path / "new" / "out.jsonl")


def test_parts_become_the_file_in_their_order(folder: WorkFolder) -> None:
    with folder.opened():
        assert folder.begin(MADE) == MADE
        folder.write(1, b"second\n")
        folder.write(0, b"first\n")
        folder.finish(2, JsonLines())
    assert folder.out.read_bytes() == b"first\nsecond\n"
    assert list(folder.out.parent.iterdir()) == [folder.out]


def test_the_same_job_goes_on_at_its_version(folder: WorkFolder) -> None:
    with folder.opened():
        folder.begin(MADE)
        folder.write(1, b"second\n")
    with folder.opened():
        assert folder.begin(replace(MADE, version=9)) == MADE
        assert (folder.has(0), folder.has(1)) == (False, True)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (replace(MADE, top_k=20), "this one has top_k = 20 in place of 10"),
        (replace(MADE, input="j"), "this one has another input"),
    ],
)
def test_another_job_is_refused(folder: WorkFolder, other: Job, said: str) -> None:
    with folder.opened():
        folder.begin(MADE)
        folder.write(0, b"")
    with folder.opened(), pytest.raises(InvalidConfig) as objection:
        folder.begin(other)
    assert said in str(objection.value)
    assert str(folder.folder) in str(objection.value)


def test_nothing_is_left_before_the_first_part(folder: WorkFolder) -> None:
    with pytest.raises(KeyboardInterrupt), folder.opened():
        folder.begin(MADE)
        raise KeyboardInterrupt
    assert list(folder.out.parent.iterdir()) == []


def test_a_damaged_job_is_named(folder: WorkFolder) -> None:
    with folder.opened():
        folder.begin(MADE)
        folder.write(0, b"")
        (folder.folder / JOB).write_bytes(b"{}")
        with pytest.raises(InvalidData, match="is damaged; remove"):
            folder.begin(MADE)


def test_only_one_process_writes_a_file(folder: WorkFolder) -> None:
    with folder.opened(), pytest.raises(Busy, match="is being written by another process"):
        with WorkFolder(folder.out).opened():
            pass


def test_what_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidData, match=r"out.csv: cannot be written: Not a directory"):
        with WorkFolder(tmp_path / "file" / "out.csv").opened():
            pass
    with pytest.raises(InvalidData, match="file: exists already"):
        with WorkFolder(tmp_path / "file").opened():
            pass

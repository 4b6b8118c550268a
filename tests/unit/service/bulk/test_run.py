"""The parts of an interrupted run are kept, used only by the same job, and removed at the end."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from service.bulk.formats import JsonLines
from service.bulk.run import JOB, Job, WorkFolder
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


@contextmanager
def begun(folder: WorkFolder, *parts: bytes, job: Job = MADE) -> Iterator[Job]:
    """Begin a run and write its first parts; yields the job that the run continues."""
    with folder.opened():
        kept = folder.begin(job)
        for number, content in enumerate(parts):
            folder.write(number, content)
        yield kept


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (replace(MADE, top_k=20), "this one has top_k = 20 in place of 10"),
        (replace(MADE, input="j"), "this one has another input"),
        (replace(MADE, format=2), "this one has format = 2 in place of 1"),
    ],
)
def test_another_job_is_refused(folder: WorkFolder, other: Job, said: str) -> None:
    with begun(folder, b""):
        pass
    with folder.opened(), pytest.raises(InvalidConfig) as objection:
        folder.begin(other)
    assert said in str(objection.value)
    assert str(folder.folder) in str(objection.value)


def test_nothing_is_left_before_the_first_part(folder: WorkFolder) -> None:
    with pytest.raises(KeyboardInterrupt), begun(folder):
        raise KeyboardInterrupt
    assert list(folder.out.parent.iterdir()) == []


def test_a_damaged_job_is_named(folder: WorkFolder) -> None:
    with begun(folder, b""):
        (folder.folder / JOB).write_bytes(b"{}")
        with pytest.raises(InvalidData, match="is damaged; remove"):
            folder.begin(MADE)


def test_only_one_process_writes_a_file(folder: WorkFolder) -> None:
    with folder.opened(), pytest.raises(Busy, match="is being written by another process"):
        with WorkFolder(folder.out).opened():
            pass


def part(folder: WorkFolder, number: int) -> Path:
    [path] = folder.folder.glob(f"{number:06}.*.part")
    return path


def flip(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(bytes([content[0] ^ 1]) + content[1:])


@pytest.mark.parametrize("damage", [flip, lambda path: path.write_bytes(b"fir"), Path.touch])
def test_a_run_goes_on_at_its_version_and_a_damaged_part_is_missing(
    folder: WorkFolder, damage: Callable
) -> None:
    with begun(folder, b"first\n", b"second\n"):
        damage(part(folder, 0))
    harmless = damage is Path.touch
    with begun(again := WorkFolder(folder.out), job=replace(MADE, version=9)) as job:
        assert job == MADE
        assert (again.has(0), again.has(1), again.has(2)) == (harmless, True, False)
        assert again.damaged == (0 if harmless else 1)
        again.write(0, b"first\n")
        again.finish(2, JsonLines())
    assert folder.out.read_bytes() == b"first\nsecond\n"
    assert list(folder.out.parent.iterdir()) == [folder.out]


def test_a_part_that_is_damaged_before_the_end_is_refused_by_name(folder: WorkFolder) -> None:
    with begun(folder, b"first\n", b"second\n"):
        damaged = part(folder, 1)
        flip(damaged)
        with pytest.raises(InvalidData, match=f"^{damaged}: was damaged on the disk"):
            folder.finish(2, JsonLines())
    assert not folder.out.exists()
    assert not damaged.exists()


@pytest.mark.parametrize("lost", [True, False])
def test_parts_of_another_job_are_no_parts(folder: WorkFolder, lost: bool) -> None:
    """`job.json` is lost, or its `version` was altered."""
    with begun(folder, b"first\n"):
        job = folder.folder / JOB
        if lost:
            job.unlink()
        else:
            job.write_bytes(job.read_bytes().replace(b'"version":7', b'"version":8'))
    with begun(again := WorkFolder(folder.out), job=replace(MADE, version=9)):
        assert not again.has(0)

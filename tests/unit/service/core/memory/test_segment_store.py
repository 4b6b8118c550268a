"""Segments on disk: opened by their key, built again when damaged, deleted when replaced.

Most tests build in this process; `tests/integration/memory/test_segment_builds.py` builds in child
processes.
"""

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import orjson
import pytest

from service.core.errors import SealError
from service.core.index.libraries import IndexParameters, load_library
from service.core.memory import segment_store
from service.core.memory.segment_store import FACTS, INDEX, SegmentStore, late_after
from service.core.processes.low_priority import LowPriorityChild

ROWS, DIMENSION = 50, 16
SHAPE = (ROWS, DIMENSION)
PARAMETERS = IndexParameters(m=8, ef_construction=40, ef=64)


@pytest.fixture
def store(tmp_path: Path) -> SegmentStore:
    return SegmentStore(tmp_path / "segments")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "segments"


@pytest.fixture(scope="module")
def vectors() -> np.ndarray:
    drawn = np.random.default_rng(1).standard_normal(SHAPE)
    return (drawn / np.linalg.norm(drawn, axis=1, keepdims=True)).astype(np.float16)


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Builds in this process, which is faster than a child; lists the folders of the builds."""
    built: list[Path] = []

    def build(_child: LowPriorityChild, command: list[str], *, seconds: float) -> str:
        job = Path(command[-1])
        load_library("faiss").build(
            np.load(job / "vectors.npy"), PARAMETERS, job / INDEX, lambda rows: None
        )
        built.append(job)
        return ""

    monkeypatch.setattr(LowPriorityChild, "run", build)
    return built


def entries(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# Built and found -----------------------------------------------------------------------------


def test_a_key_stands_for_vectors_and_parameters(store: SegmentStore, vectors: np.ndarray) -> None:
    other = vectors.copy()
    other[-1, -1] += 1
    keys = [
        store.key(vectors, PARAMETERS),
        store.key(other, PARAMETERS),
        store.key(vectors[:-1], PARAMETERS),
        store.key(vectors.reshape(ROWS * 2, DIMENSION // 2), PARAMETERS),
        store.key(vectors, IndexParameters(m=16, ef_construction=40, ef=64)),
    ]
    assert len(set(keys)) == len(keys)
    assert store.key(np.asfortranarray(vectors), PARAMETERS) == keys[0]


@pytest.mark.usefixtures("in_process")
def test_a_discarded_segment_is_deleted_and_stays_usable_where_it_is_open(
    store: SegmentStore, vectors: np.ndarray
) -> None:
    key = store.key(vectors, PARAMETERS)
    store.build(key, vectors, PARAMETERS)
    held = store.find(key, PARAMETERS, shape=SHAPE)
    store.discard(key)
    store.discard(key)
    assert store.find(key, PARAMETERS, shape=SHAPE) is None
    assert held is not None
    assert np.array_equal(held.vectors(np.arange(ROWS)), vectors)


def test_two_threads_that_need_one_segment_build_it_once(
    store: SegmentStore, vectors: np.ndarray, in_process: list[Path]
) -> None:
    key = store.key(vectors, PARAMETERS)
    with ThreadPoolExecutor(2) as pool:
        for _ in pool.map(lambda _: store.build(key, vectors, PARAMETERS), range(2)):
            pass
    assert len(in_process) == 1
    assert store.find(key, PARAMETERS, shape=SHAPE) is not None


# Damage --------------------------------------------------------------------------------------


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x10
    path.write_bytes(content)


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def _other_facts(path: Path) -> None:
    path.write_bytes(orjson.dumps({"bytes": "many", "sha256": None}))


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        (INDEX, _flip),
        (INDEX, _truncate),
        (INDEX, Path.unlink),
        (FACTS, _truncate),
        (FACTS, _other_facts),
        (FACTS, Path.unlink),
    ],
)
def test_a_damaged_segment_is_built_again(
    store: SegmentStore,
    folder: Path,
    vectors: np.ndarray,
    in_process: list[Path],
    name: str,
    damage: object,
) -> None:
    key = store.key(vectors, PARAMETERS)
    store.build(key, vectors, PARAMETERS)
    damage(folder / key / name)
    assert store.find(key, PARAMETERS, shape=SHAPE) is None
    store.build(key, vectors, PARAMETERS)
    assert store.find(key, PARAMETERS, shape=SHAPE) is not None
    assert len(in_process) == 2


@pytest.mark.usefixtures("in_process")
def test_a_segment_of_another_shape_is_not_used(store: SegmentStore, vectors: np.ndarray) -> None:
    key = store.key(vectors, PARAMETERS)
    store.build(key, vectors, PARAMETERS)
    assert store.find(key, PARAMETERS, shape=(ROWS + 1, DIMENSION)) is None


@pytest.mark.usefixtures("in_process")
def test_files_of_a_killed_build_are_deleted(
    store: SegmentStore, folder: Path, vectors: np.ndarray
) -> None:
    key = store.key(vectors, PARAMETERS)
    for name in (".build-x", f".{key}.partial-x"):
        (folder / name).mkdir(parents=True)
        (folder / name / "vectors.npy").write_bytes(b"half")
    store.build(key, vectors, PARAMETERS)
    assert entries(folder) == sorted(["build.lock", key])


# Failures -------------------------------------------------------------------------------------


def test_a_child_that_cannot_be_started_is_an_error(
    store: SegmentStore, vectors: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment_store.sys, "executable", "/nowhere/python")
    with pytest.raises(SealError, match="No such file"):
        store.build("key", vectors, PARAMETERS)


def test_a_failed_build_does_not_keep_the_next_one_waiting(
    store: SegmentStore,
    vectors: np.ndarray,
    in_process: list[Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(_child: LowPriorityChild, _command: list[str], *, seconds: float) -> str:
        raise SealError("no memory left")

    key = store.key(vectors, PARAMETERS)
    with monkeypatch.context() as patched:
        patched.setattr(LowPriorityChild, "run", fail)
        with pytest.raises(SealError, match="no memory left"):
            store.build(key, vectors, PARAMETERS)
    store.build(key, vectors, PARAMETERS)
    assert len(in_process) == 1


def test_a_late_build_is_begun_again_at_the_niceness_of_a_share(
    folder: Path, vectors: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first child sleeps until it is killed; the second one builds."""
    commands: list[list[str]] = []
    run = LowPriorityChild.run

    def starved_at_first(child: LowPriorityChild, command: list[str], **how: float) -> str:
        commands.append(command[3:])
        if len(commands) > 1:
            return run(child, command)  # however long it takes
        return run(child, [sys.executable, "-c", "import time; time.sleep(60)"], **how)

    monkeypatch.setattr(LowPriorityChild, "run", starved_at_first)
    monkeypatch.setattr(segment_store, "late_after", lambda rows: 0.2)
    store = SegmentStore(folder, late_niceness=7)
    store.build("key", vectors, PARAMETERS)
    assert [len(arguments) for arguments in commands] == [1, 2]
    assert commands[1][-1] == "7"
    assert store.find("key", PARAMETERS, shape=SHAPE) is not None


def test_when_a_build_is_late() -> None:
    assert late_after(0) == 30.0
    assert late_after(16_384) == pytest.approx(95.536)


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write anywhere")
def test_a_folder_that_may_not_be_written_is_an_error(
    store: SegmentStore, folder: Path, vectors: np.ndarray
) -> None:
    folder.mkdir(mode=0o500)
    with pytest.raises(SealError, match="cannot be written: Permission denied"):
        store.build("key", vectors, PARAMETERS)


def test_a_folder_that_cannot_be_created_is_an_error(tmp_path: Path, vectors: np.ndarray) -> None:
    (tmp_path / "file").write_text("")
    store = SegmentStore(tmp_path / "file/segments")
    assert store.find("key", PARAMETERS, shape=SHAPE) is None
    with pytest.raises(SealError, match="cannot be written: Not a directory"):
        store.build("key", vectors, PARAMETERS)


@pytest.mark.usefixtures("in_process")
def test_a_file_with_the_name_of_a_segment_is_an_error(
    store: SegmentStore, folder: Path, vectors: np.ndarray
) -> None:
    folder.mkdir()
    (folder / "key").write_text("somebody's")
    with pytest.raises(SealError, match="key: exists already"):
        store.build("key", vectors, PARAMETERS)


def test_pruning_deletes_old_segments_that_are_not_kept(
    store: SegmentStore, folder: Path, vectors: np.ndarray, in_process: list[Path]
) -> None:
    keys = [store.key(vectors[:rows], PARAMETERS) for rows in (20, 30, 40)]
    for key, rows in zip(keys, (20, 30, 40), strict=True):
        store.build(key, vectors[:rows], PARAMETERS)
    for key in keys[:2]:
        os.utime(folder / key / FACTS, (0, 0))
    store.prune(keys[:1], older_than=3600)
    assert entries(folder) == sorted([keys[0], keys[2], "build.lock"])

"""Segments on disk are opened by key, built again if damaged, and deleted when replaced.

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

from service.core.errors import DeviceUnavailable, SealError
from service.core.index.libraries import IndexParameters
from service.core.memory import segment_store
from service.core.memory.build_segment import build_measured
from service.core.memory.segment_store import (
    FACTS,
    INDEX,
    VECTORS,
    DeviceSegments,
    SegmentStore,
    late_after,
)
from service.core.processes.low_priority import LowPriorityChild
from tests.support.device.scan_device import HostScanDevice
from tests.support.disks import SmallDisk
from tests.support.disks import small_disk as small_disk
from tests.support.vectors import unit_rows

ROWS, DIMENSION = 50, 16
SHAPE = (ROWS, DIMENSION)
PARAMETERS = IndexParameters(m=8, ef_construction=40, ef=64)
FOUR_VECTORS = np.eye(4, 8, dtype=np.float16)


@pytest.fixture
def store(tmp_path: Path) -> SegmentStore:
    return SegmentStore(tmp_path / "segments")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "segments"


@pytest.fixture(scope="module")
def vectors() -> np.ndarray:
    return unit_rows(*SHAPE, seed=1)


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Make builds run in this process, which is faster than a child; returns their folders."""
    built: list[Path] = []

    def build(_child: LowPriorityChild, command: list[str], *, seconds: float) -> str:
        job = Path(command[-1])
        build_measured(np.load(job / VECTORS), PARAMETERS, job, lambda rows: None)
        built.append(job)
        return ""

    monkeypatch.setattr(LowPriorityChild, "run", build)
    return built


@pytest.fixture
def key(store: SegmentStore, vectors: np.ndarray, in_process: list[Path]) -> str:
    """The key of a segment that is already built."""
    key = store.key(vectors, PARAMETERS)
    store.build(key, vectors, PARAMETERS)
    return key


def entries(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# Built and found -----------------------------------------------------------------------------


def test_a_segment_says_what_its_graph_finds(folder: Path, key: str) -> None:
    facts = orjson.loads((folder / key / FACTS).read_bytes())
    assert facts.keys() == {"files", "nodes", "ef", "recall"}
    assert (facts["nodes"], facts["ef"], facts["recall"]) == (ROWS, PARAMETERS.ef, 1.0)


def test_vectors_are_collected_in_a_file(store: SegmentStore, folder: Path) -> None:
    matrix = store.matrix((3, 2))
    matrix[:] = 1.0
    assert isinstance(matrix, np.memmap)
    assert matrix.tolist() == [[1.0, 1.0]] * 3
    assert entries(folder) == []


def test_a_disk_without_room_for_the_vectors_is_an_error(small_disk: SmallDisk) -> None:
    """Room is checked before any page is written: a page that does not fit kills the process."""
    with small_disk.full(), pytest.raises(SealError, match=r"no room for 80000000 bytes"):
        SegmentStore(small_disk.folder).matrix((100_000, 400))


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


def test_a_discarded_segment_is_deleted_and_stays_usable_where_it_is_open(
    store: SegmentStore, vectors: np.ndarray, key: str
) -> None:
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
    key: str,
    name: str,
    damage: object,
) -> None:
    damage(folder / key / name)
    assert store.find(key, PARAMETERS, shape=SHAPE) is None
    store.build(key, vectors, PARAMETERS)
    assert store.find(key, PARAMETERS, shape=SHAPE) is not None
    assert len(in_process) == 2


def test_a_segment_of_another_shape_is_not_used(store: SegmentStore, key: str) -> None:
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
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
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
        commands.append(command[command.index("service.core.memory.build_segment") + 1 :])
        if len(commands) > 1:
            return run(child, command)  # without a time limit
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


def test_a_segment_is_found_once_it_was_built_and_then_belongs_to_the_caller() -> None:
    device = HostScanDevice()
    store = DeviceSegments(device)
    key = store.key(FOUR_VECTORS, PARAMETERS)
    assert store.find(key, PARAMETERS, shape=FOUR_VECTORS.shape) is None
    store.build(key, FOUR_VECTORS, PARAMETERS)
    segment = store.find(key, PARAMETERS, shape=FOUR_VECTORS.shape)
    assert segment is not None
    _, rows = segment.search(FOUR_VECTORS[2:3].astype(np.float32), count=1, ef=8, row_filter=None)
    assert rows.tolist() == [[2]]
    assert device.uploaded == [4]
    assert store.find(key, PARAMETERS, shape=FOUR_VECTORS.shape) is None
    assert store.key(FOUR_VECTORS, PARAMETERS) != key


def test_what_was_built_in_vain_is_forgotten() -> None:
    store = DeviceSegments(HostScanDevice())
    store.build("a", FOUR_VECTORS, PARAMETERS)
    store.discard("a")
    store.discard("a")
    store.prune([], older_than=0.0)
    store.interrupt()
    assert store.find("a", PARAMETERS, shape=FOUR_VECTORS.shape) is None


def test_a_full_device_is_an_error_of_sealing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sealer tries again later; meanwhile the rows stay live."""
    device = HostScanDevice()

    def full(vectors: np.ndarray) -> None:
        raise DeviceUnavailable("no memory")

    monkeypatch.setattr(device, "upload", full)
    with pytest.raises(SealError, match="no memory"):
        DeviceSegments(device).build("a", FOUR_VECTORS, PARAMETERS)

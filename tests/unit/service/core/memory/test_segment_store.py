"""Segments on disk are opened by key, built again if damaged, and deleted when replaced.

Most tests build in this process, which is faster than a child.
"""

import os
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import faiss
import numpy as np
import orjson
import pytest

from service.core.errors import DeviceUnavailable, InvalidConfig, SealError
from service.core.files.folder_facts import FileFacts
from service.core.index import frozen_segment
from service.core.index.libraries import IndexParameters, load_library
from service.core.index.protocol import Progress
from service.core.memory import build_segment, segment_store
from service.core.memory.segment_store import (
    FACTS,
    INDEX,
    VECTORS,
    DeviceSegments,
    SegmentStore,
    late_after,
)
from service.core.processes.low_priority import LowPriorityChild
from service.engine import device
from service.settings import EngineSettings
from tests.support.children import child_processes
from tests.support.device.scan_device import HostScanDevice
from tests.support.disks import SmallDisk
from tests.support.disks import small_disk as small_disk
from tests.support.vectors import unit_rows
from tests.support.waiting import wait_for

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
        build_segment.build_measured(np.load(job / VECTORS), PARAMETERS, job, lambda rows: None)
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
    assert facts.keys() == {"files", "builder", "parameters", "nodes", "ef", "recall"}
    assert facts["builder"] == load_library("faiss").builder()
    assert IndexParameters(**facts["parameters"]) == PARAMETERS
    assert (facts["nodes"], facts["ef"], facts["recall"]) == (ROWS, PARAMETERS.ef, 1.0)


def test_a_disk_without_room_for_the_vectors_is_an_error(small_disk: SmallDisk) -> None:
    """Room is checked before any page is written: a page that does not fit kills the process."""
    with small_disk.full(), pytest.raises(SealError, match=r"no room for 80000000 bytes"):
        SegmentStore(small_disk.folder).matrix((100_000, 400))


def test_a_key_stands_for_vectors_parameters_and_builder(
    store: SegmentStore, vectors: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    monkeypatch.setattr(faiss, "__version__", "0.0.0")
    assert store.key(vectors, PARAMETERS) not in keys  # another version builds another graph


def test_a_discarded_segment_is_deleted_and_stays_usable_where_it_is_open(
    store: SegmentStore, vectors: np.ndarray, key: str
) -> None:
    held = store.find(key, PARAMETERS, shape=SHAPE)
    store.discard(key)
    store.discard(key)
    assert store.find(key, PARAMETERS, shape=SHAPE) is None
    assert held is not None
    assert np.array_equal(held.vectors(np.arange(ROWS)), vectors)


def test_a_segment_of_another_shape_is_not_used(store: SegmentStore, key: str) -> None:
    assert store.find(key, PARAMETERS, shape=(ROWS + 1, DIMENSION)) is None


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


@pytest.mark.parametrize("name", [INDEX, FACTS])
@pytest.mark.parametrize("damage", ["cut", "gone"])
def test_a_damaged_segment_is_built_again(
    store: SegmentStore,
    folder: Path,
    vectors: np.ndarray,
    in_process: list[Path],
    key: str,
    name: str,
    damage: str,
) -> None:
    file = folder / key / name
    file.write_bytes(file.read_bytes()[:-1])
    if damage == "gone":
        file.unlink()
    assert store.find(key, PARAMETERS, shape=SHAPE) is None
    store.build(key, vectors, PARAMETERS)
    assert store.find(key, PARAMETERS, shape=SHAPE) is not None
    assert len(in_process) == 2


def test_a_segment_that_another_process_discards_meanwhile_is_not_damaged(
    store: SegmentStore,
    folder: Path,
    key: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    verify = segment_store.verify_files

    def discard_first(place: Path, files: Mapping[str, FileFacts]) -> None:
        SegmentStore(folder).discard(key)
        verify(place, files)

    monkeypatch.setattr(segment_store, "verify_files", discard_first)
    assert store.find(key, PARAMETERS, shape=SHAPE) is None
    assert not caplog.records


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
    assert (late_after(0), late_after(16_384)) == (30.0, pytest.approx(95.536))
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


def block_the_folder(folder: Path) -> str:
    folder.write_text("")
    return "cannot be written: File exists"


def take_the_name(folder: Path) -> str:
    folder.mkdir()
    (folder / "key").write_text("somebody's")
    return "key: exists already"


def forbid_writing(folder: Path) -> str:
    if os.geteuid() == 0:
        pytest.skip("the superuser may write anywhere")
    folder.mkdir(mode=0o500)
    return "cannot be written: Permission denied"


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("spoil", [block_the_folder, take_the_name, forbid_writing])
def test_a_folder_that_cannot_be_used_is_an_error(
    store: SegmentStore, folder: Path, vectors: np.ndarray, spoil: Callable[[Path], str]
) -> None:
    said = spoil(folder)
    assert store.find("key", PARAMETERS, shape=SHAPE) is None
    with pytest.raises(SealError, match=said):
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


# Child processes ----------------------------------------------------------------------------


def test_a_child_builds_the_very_bytes_that_this_process_would(
    store: SegmentStore, folder: Path, vectors: np.ndarray, tmp_path: Path
) -> None:
    """Independent processes with one thread each build equal files."""
    key = store.key(vectors, PARAMETERS)
    assert store.find(key, PARAMETERS, shape=SHAPE) is None
    store.build(key, vectors, PARAMETERS)
    assert entries(folder) == sorted(["build.lock", key])
    assert entries(folder / key) == [INDEX, FACTS]
    segment = SegmentStore(folder).find(key, PARAMETERS, shape=SHAPE)
    assert segment is not None
    assert np.array_equal(segment.vectors(np.arange(ROWS)), vectors)
    _, rows = segment.search(vectors.astype(np.float32), count=1, ef=64, row_filter=None)
    assert rows[:, 0].tolist() == list(range(ROWS))
    frozen_segment.build_segment(vectors, PARAMETERS, tmp_path / "mine", lambda rows: None)
    assert (folder / key / INDEX).read_bytes() == (tmp_path / "mine").read_bytes()


def test_a_child_that_is_killed_is_an_error_and_leaves_nothing(
    store: SegmentStore, folder: Path
) -> None:
    """A child is killed during a large build; the store starts no other child for it."""
    vectors = np.random.default_rng(2).standard_normal((20_000, 64)).astype(np.float16)
    slow = IndexParameters(m=64, ef_construction=2000)
    with ThreadPoolExecutor(1) as pool:
        building = pool.submit(store.build, "key", vectors, slow)
        wait_for(lambda: child_processes(os.getpid(), "service.core.memory.build_segment"))
        store.interrupt()
        with pytest.raises(SealError, match="ended with -9"):
            building.result()
    assert entries(folder) == ["build.lock"]
    with pytest.raises(SealError, match="the service is stopping"):
        store.build("key", vectors, slow)


def test_the_child_is_nice_and_runs_on_one_thread(tmp_path: Path) -> None:
    """The function that builds the segment also records the child's priority and threads."""
    script = (
        "import os, sys; from pathlib import Path\n"
        "from service.core.memory import build_segment\n"
        "build = build_segment.build_measured\n"
        "def recorded(*arguments):\n"
        "    seen = f\"{os.nice(0)} {os.environ['OMP_NUM_THREADS']}\"\n"
        "    Path(sys.argv[1], 'seen').write_text(seen)\n"
        "    build(*arguments)\n"
        "build_segment.build_measured = recorded\n"
        "build_segment.main(Path(sys.argv[1]), *map(int, sys.argv[2:]))\n"
    )
    _job(tmp_path)
    command = [sys.executable, "-c", script, str(tmp_path)]
    LowPriorityChild().run(command)
    assert (tmp_path / "seen").read_text() == f"{min(19, os.nice(0) + 19)} 1"
    assert (tmp_path / INDEX).exists()
    if os.nice(0) <= 12:
        LowPriorityChild().run([*command, "7"])  # a late segment is built at higher priority
        assert (tmp_path / "seen").read_text() == f"{os.nice(0) + 7} 1"


def test_an_orphaned_child_gives_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`tests/integration/service/test_child_processes.py` kills the parent of a real child."""

    def orphaned(_vectors: object, _parameters: object, _job: Path, progress: Progress) -> None:
        progress(1)
        monkeypatch.setattr(os, "getppid", lambda: -1)
        progress(2)

    monkeypatch.setattr(build_segment, "build_measured", orphaned)
    for for_children_only in ("lower_priority", "wake_when_orphaned"):
        monkeypatch.setattr(build_segment, for_children_only, lambda: None)
    _job(tmp_path)
    with pytest.raises(SystemExit, match="the service that started this build has ended"):
        build_segment.main(tmp_path)


def _job(folder: Path) -> None:
    np.save(folder / "vectors.npy", np.zeros((1, 2), np.float16))
    (folder / "parameters.json").write_bytes(orjson.dumps({"library": "faiss"}))


# Devices ------------------------------------------------------------------------------------


def test_a_segment_is_found_once_it_was_built_and_then_belongs_to_the_caller() -> None:
    device = HostScanDevice()
    store = DeviceSegments(device)
    store.build("in vain", FOUR_VECTORS, PARAMETERS)
    for _ in range(2):
        store.discard("in vain")
    assert store.find("in vain", PARAMETERS, shape=FOUR_VECTORS.shape) is None
    key = store.key(FOUR_VECTORS, PARAMETERS)
    assert store.find(key, PARAMETERS, shape=FOUR_VECTORS.shape) is None
    store.build(key, FOUR_VECTORS, PARAMETERS)
    segment = store.find(key, PARAMETERS, shape=FOUR_VECTORS.shape)
    assert segment is not None
    _, rows = segment.search(FOUR_VECTORS[2:3].astype(np.float32), count=1, ef=8, row_filter=None)
    assert rows.tolist() == [[2]]
    assert device.uploaded == [4, 4]
    assert store.find(key, PARAMETERS, shape=FOUR_VECTORS.shape) is None
    assert store.key(FOUR_VECTORS, PARAMETERS) != key


def test_a_full_device_is_an_error_of_sealing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sealer tries again later; meanwhile the rows stay live."""
    device = HostScanDevice()

    def full(vectors: np.ndarray) -> None:
        raise DeviceUnavailable("no memory")

    monkeypatch.setattr(device, "upload", full)
    with pytest.raises(SealError, match="no memory"):
        DeviceSegments(device).build("a", FOUR_VECTORS, PARAMETERS)


# A folder in one that anybody may write to ---------------------------------------------------


def link_to_a_victim(own: Path) -> str:
    victim = own.with_name("victim")
    victim.mkdir()
    (victim / "build.lock").write_text("kept")
    own.symlink_to(victim)
    return "no folder"


def file_of_this_name(own: Path) -> str:
    own.write_text("")
    return "no folder"


def open_to_all(own: Path) -> str:
    own.mkdir()
    own.chmod(0o777)
    return "others can write"


def of_another_user(own: Path) -> str:
    if os.geteuid() != 0:
        pytest.skip("only root can make files of others")
    own.mkdir(mode=0o700)
    os.chown(own, 65_534, 65_534)
    return "belongs to user 65534"


HOSTILE = [link_to_a_victim, file_of_this_name, open_to_all, of_another_user]


@pytest.mark.parametrize("hostile", HOSTILE)
@pytest.mark.parametrize("within", [".", "shards/0-of-3"])
def test_a_folder_that_others_made_is_neither_read_nor_written(
    folder: Path, vectors: np.ndarray, in_process: list[Path], hostile: Callable, within: str
) -> None:
    """It appears while the service runs: something has cleaned the temporary folder up."""
    store = SegmentStore(folder / within, own=folder)
    key = store.key(vectors, PARAMETERS)
    why = hostile(folder)
    before = contents(folder.parent)
    for refused in (
        lambda: store.build(key, vectors, PARAMETERS),
        lambda: store.matrix(SHAPE),
    ):
        with pytest.raises(SealError, match=why):
            refused()
    if folder.is_dir():  # what is there looks like a segment of this key
        shared = folder.with_name("shared")
        SegmentStore(shared).build(key, vectors, PARAMETERS)
        (folder / within).mkdir(parents=True, exist_ok=True)
        (shared / key).rename(folder / within / key)
        before = contents(folder.parent)
    assert store.find(key, PARAMETERS, shape=SHAPE) is None
    store.discard(key)
    store.prune((), older_than=-1)
    assert contents(folder.parent) == before


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else b""
        for path in folder.rglob("*")
    }


def test_an_own_folder_is_closed_to_others(
    folder: Path, vectors: np.ndarray, in_process: list[Path]
) -> None:
    store = SegmentStore(folder / "shards", own=folder)
    store.build("key", vectors, PARAMETERS)
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o755)  # as earlier versions made it
    assert store.find("key", PARAMETERS, shape=SHAPE) is not None
    assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("hostile", HOSTILE)
def test_a_service_whose_temporary_folder_others_made_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hostile: Callable
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    label_log = SimpleNamespace(state="postgresql://elsewhere/log", id="f00")
    own = tmp_path / f"keymatch-{os.geteuid()}-f00"
    why = hostile(own)
    with pytest.raises(
        InvalidConfig, match=rf"{own} is for segments, but .*{why}.*engine.segments"
    ):
        device.segment_store(label_log, EngineSettings())
    elsewhere = EngineSettings(segments=tmp_path / "elsewhere")
    device.segment_store(label_log, elsewhere)

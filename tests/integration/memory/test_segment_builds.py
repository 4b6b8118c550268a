"""Child processes that build segments: their output, failures, priority and end."""

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import orjson
import pytest

from service.core.errors import SealError
from service.core.index.frozen_segment import build_segment
from service.core.index.libraries import IndexParameters
from service.core.memory.segment_store import FACTS, INDEX, SegmentStore
from service.core.processes.low_priority import LowPriorityChild
from tests.support.vectors import unit_rows
from tests.support.waiting import wait_for

ROWS, DIMENSION = 50, 16
SHAPE = (ROWS, DIMENSION)
PARAMETERS = IndexParameters(m=8, ef_construction=40, ef=64)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "segments"


@pytest.fixture
def store(folder: Path) -> SegmentStore:
    return SegmentStore(folder)


@pytest.fixture(scope="module")
def vectors() -> np.ndarray:
    return unit_rows(*SHAPE, seed=1)


def entries(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


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
    build_segment(vectors, PARAMETERS, tmp_path / "mine", lambda rows: None)
    assert (folder / key / INDEX).read_bytes() == (tmp_path / "mine").read_bytes()


def test_a_child_that_fails_is_an_error_that_quotes_it(
    store: SegmentStore, folder: Path, vectors: np.ndarray
) -> None:
    """The matrix has only one axis, so the child cannot unpack its shape."""
    with pytest.raises(SealError, match=r"ended with 1: ValueError: "):
        store.build("key", vectors[0], PARAMETERS)
    assert entries(folder) == ["build.lock"]
    assert store.find("key", PARAMETERS, shape=SHAPE) is None


def test_a_child_that_is_killed_is_an_error_and_leaves_nothing(
    store: SegmentStore, folder: Path
) -> None:
    """A child is killed during a large build; the store starts no other child for it."""
    vectors = np.random.default_rng(2).standard_normal((20_000, 64)).astype(np.float16)
    slow = IndexParameters(m=64, ef_construction=2000)
    with ThreadPoolExecutor(1) as pool:
        building = pool.submit(store.build, "key", vectors, slow)
        wait_for(lambda: any(folder.glob(".build-*/parameters.json")))
        time.sleep(0.1)
        store.interrupt()
        with pytest.raises(SealError, match=r"ended with -9|is stopping"):
            building.result()
    assert entries(folder) == ["build.lock"]
    with pytest.raises(SealError, match="the service is stopping"):
        store.build("key", vectors, slow)


# The child -------------------------------------------------------------------------------------


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
    assert (tmp_path / "seen").read_text() == "19 1"
    assert (tmp_path / INDEX).exists()
    if os.nice(0) <= 12:
        LowPriorityChild().run([*command, "7"])  # a late segment is built at higher priority
        assert (tmp_path / "seen").read_text() == f"{os.nice(0) + 7} 1"


def test_an_orphaned_child_gives_up(tmp_path: Path) -> None:
    """The parent ends at once; the child notices its new parent and exits."""
    child = (
        "import os, sys, time; from pathlib import Path\n"
        "from service.core.memory import build_segment\n"
        "def slow(vectors, parameters, job, progress):\n"
        "    parent = os.getppid()\n"
        "    path = job / 'segment.index'\n"
        "    path.write_text('started')\n"
        "    while os.getppid() == parent:\n"
        "        time.sleep(0.01)\n"
        "    progress(1)\n"
        "    path.write_text('went on')\n"
        "build_segment.build_measured = slow\n"
        "try:\n"
        "    build_segment.main(Path(sys.argv[1]))\n"
        "finally:\n"
        "    Path(sys.argv[1], 'ended').touch()\n"
    )
    parent = (
        "import subprocess, sys, time; from pathlib import Path\n"
        "subprocess.Popen([sys.executable, '-c', *sys.argv[1:]])\n"
        f"while not Path(sys.argv[2], {INDEX!r}).exists():\n"
        "    time.sleep(0.01)\n"
    )
    _job(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", parent, child, str(tmp_path)],
        check=True,
        stderr=subprocess.PIPE,
    )
    # The pipe stays open until the child has ended, too.
    assert b"the service that started this build has ended" in done.stderr
    assert (tmp_path / "ended").exists()
    assert (tmp_path / INDEX).read_text() == "started"


def _job(folder: Path) -> None:
    np.save(folder / "vectors.npy", np.zeros((1, 2), np.float16))
    (folder / "parameters.json").write_bytes(orjson.dumps({"library": "faiss"}))

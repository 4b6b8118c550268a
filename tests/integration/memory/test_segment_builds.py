"""Segments that a child process builds: the same bytes as in this process, and its failures."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from service.core.errors import SealError
from service.core.index.libraries import IndexParameters, load_library
from service.core.memory.segment_store import FACTS, INDEX, SegmentStore
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
    drawn = np.random.default_rng(1).standard_normal(SHAPE)
    return (drawn / np.linalg.norm(drawn, axis=1, keepdims=True)).astype(np.float16)


def entries(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_child_builds_the_very_bytes_that_this_process_would(
    store: SegmentStore, folder: Path, vectors: np.ndarray, tmp_path: Path
) -> None:
    """With one thread each, processes that never met build equal files."""
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
    load_library("faiss").build(vectors, PARAMETERS, tmp_path / "mine", lambda rows: None)
    assert (folder / key / INDEX).read_bytes() == (tmp_path / "mine").read_bytes()


def test_a_child_that_fails_is_an_error_that_quotes_it(
    store: SegmentStore, folder: Path, vectors: np.ndarray
) -> None:
    """The matrix has one axis only, so the child cannot unpack its shape."""
    with pytest.raises(SealError, match=r"ended with 1: ValueError: not enough values"):
        store.build("key", vectors[0], PARAMETERS)
    assert entries(folder) == ["build.lock"]
    assert store.find("key", PARAMETERS, shape=SHAPE) is None


def test_a_child_that_is_killed_is_an_error_and_leaves_nothing(
    store: SegmentStore, folder: Path
) -> None:
    """It is killed in the middle of a large build; the store then starts no other child."""
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

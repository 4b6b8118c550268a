"""The adapter of faiss on a GPU, tested with a stand-in that runs faiss on the CPU.

The stand-in has the names of faiss's GPU classes; `python -m loadtests.gpu` runs the real ones.
"""

import gc
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import faiss
import numpy as np
import pytest

from service.core.errors import DeviceUnavailable
from service.core.index import faiss_gpu
from service.core.index.devices import device_module
from tests.support.vectors import QUERIES, slow_search, unit_rows


class Resources:
    def setTempMemory(self, size: int) -> None:
        assert size > 0


class Index:
    """A flat index that fails if two threads use it at once, or if it is freed during a search."""

    alive, running = 0, 0

    def __init__(self, resources: Resources, dimension: int, config: Any) -> None:
        assert config.useFloat16
        self._flat = faiss.IndexFlatIP(dimension)
        Index.alive += 1

    def __del__(self) -> None:
        assert not Index.running
        Index.alive -= 1

    def add(self, vectors: np.ndarray) -> None:
        assert vectors.dtype == np.float32
        self._flat.add(vectors)

    def search(self, queries: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
        Index.running += 1
        assert Index.running == 1
        found = self._flat.search(queries, count)
        Index.running -= 1
        return found


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> faiss_gpu.FaissGpu:
    stand_in = SimpleNamespace(
        StandardGpuResources=Resources,
        GpuIndexFlatConfig=SimpleNamespace,
        GpuIndexFlatIP=Index,
        get_num_gpus=lambda: 1,
    )
    monkeypatch.setattr(faiss_gpu, "faiss", stand_in)
    return faiss_gpu.open()


def test_a_matrix_is_uploaded_in_parts_and_searched(
    gpu: faiss_gpu.FaissGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(faiss_gpu, "_UPLOADED_ROWS", 7)
    keys = unit_rows(40)
    similarities, rows = gpu.upload(keys).search(QUERIES, count=5)
    assert rows.tolist() == slow_search(keys, allowed=list(range(40)), count=5)
    assert np.all(np.diff(similarities, axis=1) <= 0)
    assert (gpu.name, gpu.largest_count) == ("cuda", 2048)


def test_searches_of_several_threads_follow_one_another(gpu: faiss_gpu.FaissGpu) -> None:
    matrix = gpu.upload(unit_rows(2_000))
    with ThreadPoolExecutor(4) as pool:  # an assertion that fails in a thread fails here
        found = list(pool.map(lambda _: matrix.search(QUERIES, count=9), range(120)))
    assert len(found) == 120


def test_an_index_is_freed_by_the_next_call_and_never_beside_one(gpu: faiss_gpu.FaissGpu) -> None:
    before = Index.alive
    kept, dropped = gpu.upload(unit_rows(3)), gpu.upload(unit_rows(3))
    del dropped
    gc.collect()
    assert Index.alive == before + 2
    kept.search(QUERIES, count=1)
    assert Index.alive == before + 1


def test_faiss_without_a_gpu_is_refused_with_the_extra_that_has_it() -> None:
    if hasattr(faiss, "StandardGpuResources"):
        pytest.skip("faiss has GPU support here")
    for refused in (device_module("cuda").require, device_module("cuda").open):
        with pytest.raises(DeviceUnavailable, match=r"pip install '\.\[gpu\]'"):
            refused()


def test_a_machine_without_a_gpu_is_refused(
    gpu: faiss_gpu.FaissGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(faiss_gpu.faiss, "get_num_gpus", lambda: 0)
    with pytest.raises(DeviceUnavailable, match=r"finds no NVIDIA GPU: .* CUDA_VISIBLE_DEVICES"):
        faiss_gpu.open()


def test_a_full_memory_is_said_so(gpu: faiss_gpu.FaissGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Index, vectors: np.ndarray) -> None:
        raise RuntimeError("Error in StandardGpuResources: out of memory\nand a stack")

    monkeypatch.setattr(Index, "add", fail)
    with pytest.raises(DeviceUnavailable, match=r"5 rows of 8 dimensions .* out of memory$"):
        gpu.upload(unit_rows(5))

"""Exact search by faiss on an NVIDIA GPU: flat indexes over fp16 vectors.

Two properties of faiss shape this module and `device_segment`:

- A flat index on the GPU ignores row selectors and returns at most 2,048 rows per query. So the
  host applies filters.
- Searches on one GPU share one pool of memory and must not run at the same time. So a lock guards
  every call.

faiss rounds queries to fp16 here. So an inner product of unit vectors differs from the CPU's by
about 1e-5.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any

import numpy as np

from service.core.errors import DeviceUnavailable, MissingExtra, install_command
from service.core.index.protocol import batches
from service.core.types import DeviceName, Floats, Halves, Rows

try:
    import faiss
except ImportError as error:  # pragma: no cover - needs an environment without faiss
    raise MissingExtra("faiss", extra="gpu") from error

LARGEST_COUNT = 2048  # faiss's GPU_MAX_SELECTION_K
_UPLOADED_ROWS = 65_536  # converted to fp32 at once: 100 MB at d = 384; faiss takes no fp16
_TEMPORARY_BYTES = 256 * 2**20  # GPU memory for the distances of a batch


class GpuMatrix:
    """A flat index on the GPU."""

    def __init__(self, gpu: FaissGpu, index: Any) -> None:
        """Wrap a filled `GpuIndexFlatIP`."""
        self._gpu, self._index = gpu, index

    def search(self, queries: Floats, *, count: int) -> tuple[Floats, Rows]:
        """Find the nearest rows, as `DeviceMatrix.search` describes."""
        contiguous = np.ascontiguousarray(queries, np.float32)
        with self._gpu.exclusive():
            similarities, rows = self._index.search(contiguous, count)
        return similarities, rows

    def __del__(self) -> None:
        """Let the next call free the index: freeing it here could disturb a running search."""
        self._gpu.abandon(self._index)


class FaissGpu:
    """The first GPU that CUDA_VISIBLE_DEVICES lists."""

    name: DeviceName = "cuda"
    largest_count = LARGEST_COUNT

    def __init__(self) -> None:
        """Reserve temporary memory."""
        self._lock = Lock()
        self._abandoned: deque[Any] = deque()
        self._resources = faiss.StandardGpuResources()
        self._resources.setTempMemory(_TEMPORARY_BYTES)

    def upload(self, vectors: Halves) -> GpuMatrix:
        """Copy vectors, as `ScanDevice.upload` describes. Searches may run between the blocks."""
        try:
            return self._upload(vectors)
        except RuntimeError as error:  # faiss raises no other exception
            rows, dimension = vectors.shape
            raise DeviceUnavailable(
                f"{rows:,} rows of {dimension} dimensions cannot be copied to the GPU; a full"
                f" memory is the likeliest cause: {str(error).splitlines()[0]}"
            ) from error

    def _upload(self, vectors: Halves) -> GpuMatrix:
        config = faiss.GpuIndexFlatConfig()
        config.useFloat16 = True
        with self.exclusive():
            index = faiss.GpuIndexFlatIP(self._resources, vectors.shape[1], config)
        matrix = GpuMatrix(self, index)
        for batch in batches(len(vectors), _UPLOADED_ROWS):
            part = np.ascontiguousarray(vectors[batch], np.float32)
            with self.exclusive():
                index.add(part)
        return matrix

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Use the GPU alone for the block. Before it, indexes that nobody needs are freed."""
        with self._lock:
            self._abandoned.clear()
            yield

    def abandon(self, index: Any) -> None:
        """Let the next call free an index. This never waits, as a finalizer may run anywhere."""
        self._abandoned.append(index)


def require() -> None:
    """Raise `DeviceUnavailable` if faiss was built without GPU support, or there is no GPU."""
    if not hasattr(faiss, "StandardGpuResources"):
        raise DeviceUnavailable(
            f'device = "cuda" needs faiss with GPU support, but version {faiss.__version__} here'
            " has none; in a new environment without onnxruntime and faiss-cpu, whose packages"
            f" have the same names: {install_command('gpu')}"
        )
    if faiss.get_num_gpus() < 1:
        raise DeviceUnavailable(
            'device = "cuda", but faiss finds no NVIDIA GPU: is there one with a driver for'
            " CUDA 12, and does CUDA_VISIBLE_DEVICES show it?"
        )


def open() -> FaissGpu:
    """Return the GPU; raises `DeviceUnavailable` if it cannot be used, see `require`."""
    require()
    return FaissGpu()

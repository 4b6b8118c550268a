"""A GPU simulated in numpy, so that tests need no GPU.

It keeps the contract of `ScanDevice` and behaves like a GPU: immutable matrices, queries rounded to
fp16, one call at a time, few rows per search, ties in another order than on the CPU. Run
`python -m loadtests.gpu` to see that faiss does the same on a real GPU.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from threading import Lock

import numpy as np
import pytest

from service.core.encoding import onnx_session
from service.core.encoding.onnx_session import OnnxDevice
from service.core.index import devices
from service.core.types import DeviceName, Floats, Halves, Rows


class HostMatrix:
    """Vectors, copied when they are uploaded."""

    def __init__(self, device: "HostScanDevice", vectors: Halves) -> None:
        assert vectors.dtype == np.float16
        assert len(vectors), "a device takes no empty matrix"
        self._device, self._vectors = device, vectors.copy()

    def search(self, queries: Floats, *, count: int) -> tuple[Floats, Rows]:
        assert 0 < count <= min(len(self._vectors), self._device.largest_count)
        assert len(queries), "no queries were searched for"
        with self._device.exclusive():
            self._device.fetched.append(count)
            if self._device.rounds:
                queries = queries.astype(np.float16).astype(np.float32)
            # `@` would round differently for other numbers of rows.
            similarities = np.einsum("bd,rd->br", queries, self._vectors.astype(np.float32))
            backwards = similarities[:, ::-1]  # ties: last row first, unlike the CPU
            order = np.argsort(-backwards, axis=1, kind="stable")[:, :count]
            rows = len(self._vectors) - 1 - order
            return np.take_along_axis(similarities, rows, 1), rows


class HostScanDevice:
    """Records the sizes of uploaded matrices and of search results."""

    name: DeviceName = "cuda"

    def __init__(self, *, largest_count: int = 16, rounds: bool = True) -> None:
        self.largest_count, self.rounds = largest_count, rounds
        self.uploaded: list[int] = []  # number of rows of each matrix
        self.fetched: list[int] = []  # rows per query, for each search
        self._lock = Lock()

    def upload(self, vectors: Halves) -> HostMatrix:
        self.uploaded.append(len(vectors))
        return HostMatrix(self, vectors)

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        with self._lock:
            yield


def require() -> None:
    """Do nothing: the simulated GPU always exists."""


def open() -> HostScanDevice:
    """Open the simulated GPU, like the `open` of a real device's module."""
    return HostScanDevice(largest_count=2048)


def use_stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """During the test, make `device = "cuda"` use this device and onnxruntime's CPU provider."""
    processor = OnnxDevice(provider="CPUExecutionProvider", memory="cpu")
    providers: Mapping[DeviceName, OnnxDevice] = {"cpu": processor, "cuda": processor}
    monkeypatch.setattr(onnx_session, "ONNX_DEVICES", providers)
    monkeypatch.setattr("service.core.encoding.encoder.ONNX_DEVICES", providers)
    monkeypatch.setitem(devices.SCAN_DEVICES, "cuda", __name__)

"""A stand-in for a GPU, in numpy: no machine that tests run on needs one.

It keeps the contract of `ScanDevice` and a GPU's habits: matrices never change, queries are rounded
to fp16, one call at a time, few rows a search, equal similarities in another order. What it cannot
show is that faiss does the same on a real GPU; `python -m loadtests.gpu` does.
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
    """Vectors that were copied at the upload."""

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
            # Not `@`, whose sums depend on how many rows are multiplied at once.
            similarities = np.einsum("bd,rd->br", queries, self._vectors.astype(np.float32))
            backwards = similarities[:, ::-1]  # ties: the last row first, unlike on the processor
            order = np.argsort(-backwards, axis=1, kind="stable")[:, :count]
            rows = len(self._vectors) - 1 - order
            return np.take_along_axis(similarities, rows, 1), rows


class HostScanDevice:
    """Counts what is uploaded and fetched."""

    name: DeviceName = "cuda"

    def __init__(self, *, largest_count: int = 16, rounds: bool = True) -> None:
        self.largest_count, self.rounds = largest_count, rounds
        self.uploaded: list[int] = []  # rows of each matrix
        self.fetched: list[int] = []  # rows a query, of each search
        self._lock = Lock()

    def upload(self, vectors: Halves) -> HostMatrix:
        self.uploaded.append(len(vectors))
        return HostMatrix(self, vectors)

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        with self._lock:
            yield


def require() -> None:
    """The stand-in is always there."""


def open() -> HostScanDevice:
    """As the module of a real device is opened."""
    return HostScanDevice(largest_count=2048)


def use_stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `device = "cuda"` mean this stand-in and onnxruntime's processor for the test."""
    processor = OnnxDevice(provider="CPUExecutionProvider", memory="cpu")
    providers: Mapping[DeviceName, OnnxDevice] = {"cpu": processor, "cuda": processor}
    monkeypatch.setattr(onnx_session, "ONNX_DEVICES", providers)
    monkeypatch.setattr("service.core.encoding.encoder.ONNX_DEVICES", providers)
    monkeypatch.setitem(devices.SCAN_DEVICES, "cuda", __name__)

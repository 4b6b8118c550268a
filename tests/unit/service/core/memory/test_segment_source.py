"""Segments of sealed rows on a device: built, handed over once, forgotten."""

import numpy as np
import pytest

from service.core.errors import DeviceUnavailable, SealError
from service.core.index.libraries import IndexParameters
from service.core.memory.segment_source import DeviceSegments
from tests.support.device.scan_device import HostScanDevice

VECTORS = np.eye(4, 8, dtype=np.float16)
PARAMETERS = IndexParameters()


def test_a_segment_is_found_once_it_was_built_and_then_belongs_to_the_caller() -> None:
    device = HostScanDevice()
    store = DeviceSegments(device)
    key = store.key(VECTORS, PARAMETERS)
    assert store.find(key, PARAMETERS, shape=VECTORS.shape) is None
    store.build(key, VECTORS, PARAMETERS)
    segment = store.find(key, PARAMETERS, shape=VECTORS.shape)
    assert segment is not None
    _, rows = segment.search(VECTORS[2:3].astype(np.float32), count=1, ef=8, row_filter=None)
    assert rows.tolist() == [[2]]
    assert device.uploaded == [4]
    assert store.find(key, PARAMETERS, shape=VECTORS.shape) is None
    assert store.key(VECTORS, PARAMETERS) != key


def test_what_was_built_in_vain_is_forgotten() -> None:
    store = DeviceSegments(HostScanDevice())
    store.build("a", VECTORS, PARAMETERS)
    store.discard("a")
    store.discard("a")
    store.prune([], older_than=0.0)
    store.interrupt()
    assert store.find("a", PARAMETERS, shape=VECTORS.shape) is None


def test_a_full_device_is_an_error_of_sealing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sealer tries again later; meanwhile the rows stay live."""
    device = HostScanDevice()

    def full(vectors: np.ndarray) -> None:
        raise DeviceUnavailable("no memory")

    monkeypatch.setattr(device, "upload", full)
    with pytest.raises(SealError, match="no memory"):
        DeviceSegments(device).build("a", VECTORS, PARAMETERS)

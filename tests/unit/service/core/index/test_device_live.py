"""Live vectors on a device: appended, overwritten, searched by old views; with a stand-in."""

import numpy as np
import pytest

from service.core.errors import DeviceUnavailable
from service.core.index import device_live
from service.core.index.device_live import DeviceLiveVectors
from service.core.index.protocol import RowFilter
from tests.support.device.scan_device import HostScanDevice
from tests.support.device.vectors import QUERIES, slow_search, unit_rows

KEYS = unit_rows(40)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> HostScanDevice:
    monkeypatch.setattr(device_live, "BLOCK_ROWS", 8)
    return HostScanDevice(largest_count=64)


def searched(live: DeviceLiveVectors, stop: int, *, count: int = 6) -> list[list[int]]:
    row_filter = RowFilter(start=0, stop=stop)
    return live.search(QUERIES, count=count, row_filter=row_filter)[1].tolist()


def test_every_view_sees_its_rows_and_no_others(device: HostScanDevice) -> None:
    live = DeviceLiveVectors(device, capacity=40, dimension=8)
    stops = [1, 5, 8, 9, 30, 31, 40]
    for start, stop in zip([0, *stops], stops, strict=False):
        live.write(start, KEYS[start:stop])
        for seen in [seen for seen in stops if seen <= stop]:
            assert searched(live, seen) == slow_search(KEYS, allowed=list(range(seen)), count=6)
    assert np.array_equal(live.read(np.array([39, 3])), KEYS[[39, 3]])


def test_a_write_uploads_only_what_is_not_there_yet(device: HostScanDevice) -> None:
    live = DeviceLiveVectors(device, capacity=40, dimension=8)
    for start in range(20):
        live.write(start, KEYS[start : start + 1])
    # One upload a row up to 7, the block of 8, again one a row, both blocks, and so on.
    assert device.uploaded == [*range(1, 8), 8, *range(1, 8), 16, *range(1, 5)]


def test_rows_of_a_dropped_draft_are_overwritten(device: HostScanDevice) -> None:
    live = DeviceLiveVectors(device, capacity=40, dimension=8)
    live.write(0, KEYS[:6])
    live.write(6, KEYS[20:35])  # of a view that was never published: 21 rows, two whole blocks
    live.write(6, KEYS[6:19])
    assert searched(live, 19) == slow_search(KEYS, allowed=list(range(19)), count=6)
    live.write(7, KEYS[30:32])  # fewer rows than before
    expected = np.concatenate([KEYS[:7], KEYS[30:32]])
    assert searched(live, 9) == slow_search(expected, allowed=list(range(9)), count=6)


def test_rows_for_which_the_device_has_no_memory_are_scanned_until_they_are_there(
    device: HostScanDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = DeviceLiveVectors(device, capacity=40, dimension=8)
    live.write(0, KEYS[:10])
    upload = device.upload

    def full(vectors: np.ndarray) -> None:
        raise DeviceUnavailable("no memory")

    monkeypatch.setattr(device, "upload", full)
    live.write(10, KEYS[10:12])
    live.write(12, KEYS[12:26])
    for seen in (10, 11, 26):
        assert searched(live, seen) == slow_search(KEYS, allowed=list(range(seen)), count=6)
    live.write(9, KEYS[9:20])  # a draft was dropped: what the device holds of it no longer counts
    assert searched(live, 20) == slow_search(KEYS, allowed=list(range(20)), count=6)
    monkeypatch.setattr(device, "upload", upload)
    live.write(20, KEYS[20:21])
    device.fetched.clear()
    assert searched(live, 21) == slow_search(KEYS, allowed=list(range(21)), count=6)
    assert len(device.fetched) == 2

"""Exact search on a device, compared with a full sort; the device is a stand-in."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.core.index import device_segment
from service.core.index.device_segment import DeviceSegment
from service.core.index.protocol import RowFilter
from tests.support.device.scan_device import HostScanDevice
from tests.support.device.vectors import DIMENSION, QUERIES, slow_search, unit_rows


def bitmap(rows: int, dead: set[int]) -> np.ndarray:
    return np.packbits([row not in dead for row in range(rows)], bitorder="little")


@settings(max_examples=150)
@given(st.data())
def test_a_search_is_a_full_sort_of_what_passes(data: st.DataObject) -> None:
    rows = data.draw(st.integers(1, 80))
    places = st.integers(0, rows)
    cuts = data.draw(st.lists(places, max_size=2))
    start = data.draw(places)
    stop = data.draw(st.integers(start, rows))
    dead = data.draw(st.sets(st.integers(0, rows - 1)))
    count = data.draw(st.integers(1, rows + 3))
    device = HostScanDevice(largest_count=data.draw(st.integers(1, rows + 5)))
    segment = DeviceSegment(device, unit_rows(rows), cuts=cuts)
    row_filter = RowFilter(start=start, stop=stop, alive=bitmap(rows, dead) if dead else None)
    similarities, found = segment.search(QUERIES, count=count, ef=8, row_filter=row_filter)
    allowed = [row for row in range(start, stop) if row not in dead]
    assert found.tolist() == slow_search(unit_rows(rows), allowed=allowed, count=count)
    assert np.all(np.diff(similarities[:, : len(allowed)], axis=1) <= 0)
    assert np.all(similarities[:, len(allowed) :] == -np.inf)


def test_without_a_filter_each_kind_is_searched_once_and_nothing_is_dropped() -> None:
    device, keys = HostScanDevice(), unit_rows(60)
    segment = DeviceSegment(device, keys, cuts=[40])
    assert device.uploaded == [40, 20]
    _, rows = segment.search(QUERIES, count=10, ef=8, row_filter=None)
    assert rows.tolist() == slow_search(keys, allowed=list(range(60)), count=10)
    assert device.fetched == [10, 10]


def test_a_kind_that_is_not_asked_for_is_not_searched() -> None:
    device, keys = HostScanDevice(), unit_rows(60)
    segment = DeviceSegment(device, keys, cuts=[40])
    _, rows = segment.search(QUERIES, count=5, ef=8, row_filter=RowFilter(start=40, stop=60))
    assert rows.tolist() == slow_search(keys, allowed=list(range(40, 60)), count=5)
    assert device.fetched == [5]


def test_tombstones_are_made_up_for_by_fetching_more_and_then_by_a_scan() -> None:
    rows, keys = 3_000, unit_rows(3_000)
    order = slow_search(keys, allowed=list(range(rows)), count=rows)[0]
    for dead, fetched in (
        (set(order[:10]), [43]),  # the spare rows suffice
        (set(order[:60]), [43, 128]),  # a second, larger search
        (set(order[:500]), [44, 128]),  # the nearest alive row lies beyond what can be fetched
    ):
        device = HostScanDevice(largest_count=128)
        segment = DeviceSegment(device, keys)
        _, found = segment.search(
            QUERIES[:1],
            count=10,
            ef=8,
            row_filter=RowFilter(start=0, stop=rows, alive=bitmap(rows, dead)),
        )
        assert found.tolist() == [[row for row in order if row not in dead][:10]]
        assert device.fetched == fetched


def test_only_queries_that_miss_rows_are_searched_again() -> None:
    keys = np.concatenate([unit_rows(400), np.tile(QUERIES[:1], (50, 1)).astype(np.float16)])
    device = HostScanDevice(largest_count=128)
    segment = DeviceSegment(device, keys)
    row_filter = RowFilter(start=0, stop=450, alive=bitmap(450, set(range(400, 450))))
    _, rows = segment.search(QUERIES, count=10, ef=8, row_filter=row_filter)
    assert rows.tolist() == slow_search(keys, allowed=list(range(400)), count=10)
    assert len(device.fetched) == 2


def test_more_rows_than_the_device_returns_are_found_on_the_host() -> None:
    device, keys = HostScanDevice(largest_count=16), unit_rows(100)
    _, rows = DeviceSegment(device, keys).search(QUERIES, count=40, ef=8, row_filter=None)
    assert rows.tolist() == slow_search(keys, allowed=list(range(100)), count=40)
    assert device.fetched == []


def test_a_large_matrix_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_segment, "MOST_ROWS", 25)
    device, keys = HostScanDevice(largest_count=64), unit_rows(60)
    segment = DeviceSegment(device, keys, cuts=[30])
    assert device.uploaded == [25, 5, 20, 10]
    _, rows = segment.search(QUERIES, count=12, ef=8, row_filter=None)
    assert rows.tolist() == slow_search(keys, allowed=list(range(60)), count=12)


def test_vectors_and_an_empty_segment() -> None:
    segment = DeviceSegment(HostScanDevice(), unit_rows(5))
    assert segment.rows == 5
    assert np.array_equal(segment.vectors(np.array([4, 0])), unit_rows(5)[[4, 0]])
    empty = DeviceSegment(HostScanDevice(), np.zeros((0, DIMENSION), np.float16), cuts=[0])
    _, rows = empty.search(QUERIES, count=2, ef=8, row_filter=None)
    assert rows.tolist() == [[-1, -1]] * 3

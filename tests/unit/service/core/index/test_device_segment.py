"""Exact search, on the host or on a simulated device, finds the same rows as a full sort."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.core.errors import DeviceUnavailable
from service.core.index import device_segment, exact
from service.core.index.device_segment import DeviceLiveVectors, DeviceSegment
from service.core.index.exact import exact_search
from service.core.index.found_rows import nearest
from service.core.index.protocol import RowFilter
from tests.support.device.scan_device import HostScanDevice
from tests.support.vectors import DIMENSION, QUERIES, bitmap, slow_search, unit_rows


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
    keys = unit_rows(rows)
    row_filter = RowFilter(start=start, stop=stop, alive=bitmap(rows, dead) if dead else None)
    segment = DeviceSegment(device, keys, cuts=cuts)
    allowed = [row for row in range(start, stop) if row not in dead]
    for similarities, found in (
        segment.search(QUERIES, count=count, ef=8, row_filter=row_filter),
        exact_search(keys, QUERIES, count=count, row_filter=row_filter),  # on the host
    ):
        assert found.tolist() == slow_search(keys, allowed=allowed, count=count)
        assert np.all(np.diff(similarities[:, : len(allowed)], axis=1) <= 0)
        assert np.all(similarities[:, len(allowed) :] == -np.inf)


@pytest.mark.parametrize(
    ("start", "count", "fetched"), [(0, 10, [10, 10]), (40, 5, [5])], ids=["all", "one kind"]
)
def test_each_kind_is_searched_once_if_it_is_asked_for_and_nothing_is_dropped(
    start: int, count: int, fetched: list[int]
) -> None:
    device, keys = HostScanDevice(), unit_rows(60)
    segment = DeviceSegment(device, keys, cuts=[40])
    assert device.uploaded == [40, 20]
    row_filter = RowFilter(start=start, stop=60) if start else None
    _, rows = segment.search(QUERIES, count=count, ef=8, row_filter=row_filter)
    assert rows.tolist() == slow_search(keys, allowed=list(range(start, 60)), count=count)
    assert device.fetched == fetched


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


KEYS = unit_rows(40)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> HostScanDevice:
    monkeypatch.setattr(device_segment, "BLOCK_ROWS", 8)
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
    # Each write uploads the rows after the last full block (1 to 7), or all full blocks (8, 16).
    assert device.uploaded == [*range(1, 8), 8, *range(1, 8), 16, *range(1, 5)]


def test_rows_of_a_dropped_draft_are_overwritten(device: HostScanDevice) -> None:
    live = DeviceLiveVectors(device, capacity=40, dimension=8)
    live.write(0, KEYS[:6])
    live.write(6, KEYS[20:35])  # by a dropped draft: 21 rows, two full blocks
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
    live.write(9, KEYS[9:20])  # after a dropped draft, whose rows on the device are stale
    assert searched(live, 20) == slow_search(KEYS, allowed=list(range(20)), count=6)
    monkeypatch.setattr(device, "upload", upload)
    live.write(20, KEYS[20:21])
    device.fetched.clear()
    assert searched(live, 21) == slow_search(KEYS, allowed=list(range(21)), count=6)
    assert len(device.fetched) == 2


# On the host -----------------------------------------------------------------------------------


def test_the_nearest_columns_by_hand() -> None:
    similarities = np.array([[0.1, 0.9, 0.5, 0.9]], np.float32)
    rows = np.array([[10, 40, 20, 30]])
    best, places = nearest(similarities, rows, count=3)
    assert places.tolist() == [[30, 40, 20]]  # two rows have 0.9: the smaller row comes first
    assert best == pytest.approx(np.array([[0.9, 0.9, 0.5]]))


def test_a_scan_in_several_chunks_finds_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    keys, row_filter = unit_rows(50), RowFilter(start=3, stop=48)
    whole = exact_search(keys, QUERIES, count=10, row_filter=row_filter)
    monkeypatch.setattr(exact, "_SCAN_ROWS", 7)
    chunked = exact_search(keys, QUERIES, count=10, row_filter=row_filter)
    assert np.array_equal(whole[1], chunked[1])
    assert whole[0] == pytest.approx(chunked[0], abs=1e-6)

"""Exact search over live rows and over all keys finds the same rows as a full sort."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.core.index import exact
from service.core.index.exact import LiveVectors, exact_search, nearest, pad
from service.core.index.protocol import RowFilter
from tests.support.vectors import QUERIES, bitmap, slow_search, unit_rows


def test_the_nearest_columns_by_hand() -> None:
    similarities = np.array([[0.1, 0.9, 0.5, 0.9]], np.float32)
    rows = np.array([[10, 40, 20, 30]])
    best, places = nearest(similarities, rows, count=3)
    assert places.tolist() == [[30, 40, 20]]  # two rows have 0.9: the smaller row comes first
    assert best == pytest.approx(np.array([[0.9, 0.9, 0.5]]))


def test_padding_by_hand() -> None:
    similarities, rows = pad(np.ones((1, 1), np.float32), np.array([[4]]), count=3)
    assert rows.tolist() == [[4, -1, -1]]
    assert similarities.tolist() == [[1.0, -np.inf, -np.inf]]


@settings(max_examples=60)
@given(st.data())
def test_exact_search_is_a_full_sort(data: st.DataObject) -> None:
    rows = data.draw(st.integers(min_value=1, max_value=24))
    start = data.draw(st.integers(min_value=0, max_value=rows))
    stop = data.draw(st.integers(min_value=start, max_value=rows))
    dead = data.draw(st.sets(st.integers(min_value=0, max_value=rows - 1)))
    count = data.draw(st.integers(min_value=1, max_value=rows + 2))
    keys = unit_rows(rows)
    row_filter = RowFilter(start=start, stop=stop, alive=bitmap(rows, dead) if dead else None)
    similarities, found = exact_search(keys, QUERIES, count=count, row_filter=row_filter)
    allowed = [row for row in range(start, stop) if row not in dead]
    assert found.tolist() == slow_search(keys, allowed=allowed, count=count)
    assert np.all(np.diff(similarities[:, : len(allowed)], axis=1) <= 0)


def test_a_scan_in_several_chunks_finds_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    keys, row_filter = unit_rows(50), RowFilter(start=3, stop=48)
    whole = exact_search(keys, QUERIES, count=10, row_filter=row_filter)
    monkeypatch.setattr(exact, "_SCAN_ROWS", 7)
    chunked = exact_search(keys, QUERIES, count=10, row_filter=row_filter)
    assert np.array_equal(whole[1], chunked[1])
    assert whole[0] == pytest.approx(chunked[0], abs=1e-6)


def test_live_vectors_are_searched_exactly_and_read_back() -> None:
    keys = unit_rows(10)
    store = LiveVectors(capacity=16, dimension=8)
    store.write(0, keys[:4])
    store.write(4, keys[4:])
    similarities, rows = store.search(QUERIES, count=10, row_filter=RowFilter(start=0, stop=10))
    assert rows.tolist() == slow_search(keys, allowed=list(range(10)), count=10)
    recomputed = np.take_along_axis(QUERIES @ keys.astype(np.float32).T, rows, 1)
    assert similarities == pytest.approx(recomputed, abs=1e-6)
    assert np.array_equal(store.read(np.array([9, 0])), keys[[9, 0]])


def test_more_rows_than_the_capacity_do_not_fit() -> None:
    with pytest.raises(ValueError, match="broadcast"):
        LiveVectors(capacity=2, dimension=8).write(0, unit_rows(3))

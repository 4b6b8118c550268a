"""Exact search over live rows and over all keys, compared with a full sort."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.core.index import exact
from service.core.index.exact import LiveVectors, exact_search, nearest, pad
from service.core.index.protocol import RowFilter


def unit_rows(rows: int, dimension: int = 8, seed: int = 0) -> np.ndarray:
    drawn = np.random.default_rng(seed).standard_normal((rows, dimension)).astype(np.float32)
    return drawn / np.linalg.norm(drawn, axis=1, keepdims=True)


QUERIES = unit_rows(3, seed=9)


def slow_search(keys: np.ndarray, *, allowed: list[int], count: int) -> list[list[int]]:
    """For each query the allowed rows by descending similarity, then -1."""
    similarities = QUERIES @ keys.astype(np.float32).T
    best = [sorted(allowed, key=lambda row: -line[row])[:count] for line in similarities]
    return [rows + [-1] * (count - len(rows)) for rows in best]


def test_the_nearest_columns_by_hand() -> None:
    similarities = np.array([[0.1, 0.9, 0.5, 0.9]], np.float32)
    rows = np.array([[10, 40, 20, 30]])
    best, places = nearest(similarities, rows, count=3)
    assert places.tolist() == [[30, 40, 20]]  # 0.9 twice: the smaller row first
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
    keys = unit_rows(rows).astype(np.float16)
    alive = np.packbits([row not in dead for row in range(rows)], bitorder="little")
    row_filter = RowFilter(start=start, stop=stop, alive=alive if dead else None)
    similarities, found = exact_search(keys, QUERIES, count=count, row_filter=row_filter)
    allowed = [row for row in range(start, stop) if row not in dead]
    assert found.tolist() == slow_search(keys, allowed=allowed, count=count)
    assert np.all(np.diff(similarities[:, : len(allowed)], axis=1) <= 0)


def test_a_scan_in_several_chunks_finds_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    keys, row_filter = unit_rows(50).astype(np.float16), RowFilter(start=3, stop=48)
    whole = exact_search(keys, QUERIES, count=10, row_filter=row_filter)
    monkeypatch.setattr(exact, "_SCAN_ROWS", 7)
    chunked = exact_search(keys, QUERIES, count=10, row_filter=row_filter)
    assert np.array_equal(whole[1], chunked[1])
    assert whole[0] == pytest.approx(chunked[0], abs=1e-6)


def test_live_vectors_are_searched_exactly_and_read_back() -> None:
    keys = unit_rows(10).astype(np.float16)
    store = LiveVectors(capacity=16, dimension=8)
    store.write(0, keys[:4])
    store.write(4, keys[4:])
    similarities, rows = store.search(QUERIES, count=10, row_filter=RowFilter(start=0, stop=10))
    assert rows.tolist() == slow_search(keys, allowed=list(range(10)), count=10)
    recomputed = np.take_along_axis(QUERIES @ keys.astype(np.float32).T, rows, 1)
    assert similarities == pytest.approx(recomputed, abs=1e-6)
    assert np.array_equal(store.read(np.array([9, 0])), keys[[9, 0]])


def test_rows_written_after_a_search_was_planned_are_not_seen() -> None:
    keys = unit_rows(10).astype(np.float16)
    store = LiveVectors(capacity=16, dimension=8)
    store.write(0, keys[:4])
    row_filter = RowFilter(start=0, stop=4)
    store.write(4, keys[4:])
    _, rows = store.search(QUERIES, count=6, row_filter=row_filter)
    assert rows.tolist() == slow_search(keys, allowed=[0, 1, 2, 3], count=6)


def test_rows_of_a_failed_attempt_are_overwritten() -> None:
    keys = unit_rows(10).astype(np.float16)
    store = LiveVectors(capacity=16, dimension=8)
    store.write(0, keys[:8])  # of a view that was never published
    store.write(0, keys[8:])
    _, rows = store.search(QUERIES, count=3, row_filter=RowFilter(start=0, stop=2))
    assert rows.tolist() == slow_search(keys[8:], allowed=[0, 1], count=3)


def test_more_rows_than_the_capacity_do_not_fit() -> None:
    with pytest.raises(ValueError, match="broadcast"):
        LiveVectors(capacity=2, dimension=8).write(0, unit_rows(3).astype(np.float16))

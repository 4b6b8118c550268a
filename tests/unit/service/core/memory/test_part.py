"""Bitmaps and sparse rows, compared with plain sets and lists."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from service.core.memory.part import alive_places, count_dead, gather, set_tombstones

value_rows = st.lists(st.lists(st.integers(min_value=0, max_value=9), max_size=4), max_size=8)


@given(st.integers(min_value=1, max_value=40), st.data())
def test_a_bitmap_has_exactly_the_tombstones_that_were_set(size: int, data: st.DataObject) -> None:
    place = st.integers(min_value=0, max_value=size - 1)
    alive, dead = None, set()
    for places in data.draw(st.lists(st.lists(place), max_size=4)):
        before = None if alive is None else alive.copy()
        later = set_tombstones(alive, places, size)
        assert before is None or np.array_equal(alive, before)
        alive, dead = later, dead | set(places)
    assert count_dead(alive, size) == len(dead)
    assert alive_places(alive, size).tolist() == sorted(set(range(size)) - dead)


def test_count_dead_counts_only_the_first() -> None:
    alive = set_tombstones(None, [1, 7], 12)
    assert [count_dead(alive, size) for size in (1, 2, 8, 12)] == [0, 1, 2, 2]
    assert alive_places(alive, 3).tolist() == [0, 2]


def test_nothing_is_dead_without_a_bitmap() -> None:
    assert count_dead(None, 3) == 0
    assert alive_places(None, 3).tolist() == [0, 1, 2]


@given(value_rows, st.data())
def test_gathered_rows_are_the_rows(matrix: list[list[int]], data: st.DataObject) -> None:
    place = st.integers(min_value=0, max_value=len(matrix) - 1)
    places = data.draw(st.lists(place)) if matrix else []
    indptr = np.cumsum([0, *(len(row) for row in matrix)])
    indices = np.array([column for row in matrix for column in row], np.int32)
    columns, counts = gather(indptr, indices, np.array(places, np.int64))
    assert counts.tolist() == [len(matrix[place]) for place in places]
    assert columns.tolist() == [column for place in places for column in matrix[place]]

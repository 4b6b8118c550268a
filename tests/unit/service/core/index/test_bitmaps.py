"""Bitmaps, compared with plain sets."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from service.core.index.bitmaps import alive_places, count_dead, set_tombstones


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

"""Tombstones and filters behave like plain sets."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from service.core.index.protocol import RowFilter, Tombstones


@given(st.integers(min_value=1, max_value=40), st.data())
def test_tombstones_are_the_dead_places_and_old_ones_never_change(
    size: int, data: st.DataObject
) -> None:
    """Places get tombstones, some lose them again, and the number of places grows."""
    tombstones, dead = Tombstones(size=size), set[int]()
    for _ in range(data.draw(st.integers(0, 4))):
        place = st.integers(min_value=0, max_value=tombstones.size - 1)
        before = tombstones.alive_places(tombstones.size).tolist()
        died, revived = data.draw(st.lists(place)), data.draw(place)
        later = tombstones.with_dead(died).without(revived)
        assert tombstones.alive_places(tombstones.size).tolist() == before
        tombstones, dead = later, (dead | set(died)) - {revived}
        tombstones = tombstones.of_size(tombstones.size + data.draw(st.integers(0, 20)))
    assert tombstones.count == len(dead)
    assert [place in tombstones for place in range(size)] == [p in dead for p in range(size)]
    for stop in (size, tombstones.size):
        assert tombstones.alive_places(stop).tolist() == sorted(set(range(stop)) - dead)


def test_nothing_is_dead_at_first() -> None:
    assert Tombstones(size=100).alive is None
    assert 7 not in Tombstones(size=100)
    assert Tombstones(size=100).without(7).alive is None


def test_a_filter_says_which_rows_pass() -> None:
    row_filter = RowFilter(start=2, stop=12, alive=np.packbits([1, 1, 1, 0] * 4, bitorder="little"))

    assert row_filter.allows(np.array([[-1, 1, 2], [3, 11, 10], [12, 15, 4]])).tolist() == [
        [False, False, True],
        [False, False, True],
        [False, False, True],
    ]

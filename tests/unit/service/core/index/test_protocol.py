"""Tombstones and filters behave like plain sets."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from service.core.index.protocol import RowFilter, Tombstones, batches


@given(st.integers(min_value=1, max_value=40), st.data())
def test_tombstones_are_the_dead_places_and_old_ones_never_change(
    size: int, data: st.DataObject
) -> None:
    """Places get tombstones, some lose them again, and the number of places grows."""
    tombstones, dead = Tombstones(size=size), set[int]()
    assert tombstones.alive is None and tombstones.without(0).alive is None
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


def test_a_filter_says_which_rows_pass() -> None:
    row_filter = RowFilter(start=2, stop=12, alive=np.packbits([1, 1, 1, 0] * 4, bitorder="little"))
    rows = np.array([[-1, 1, 2], [3, 11, 10], [12, 15, 4]])
    assert row_filter.allows(rows).tolist() == [[False, False, True]] * 3
    assert row_filter.mask().tolist() == [True, False, True, True, True, False, *[True] * 3, False]
    assert RowFilter(start=2, stop=4).mask().tolist() == [True, True]


def test_batches_cover_every_row_once() -> None:
    assert list(batches(7, 3)) == [slice(0, 3), slice(3, 6), slice(6, 7)]
    assert list(batches(0, 3)) == []

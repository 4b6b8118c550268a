"""The plan of what is sealed together, as a pure function: no memory, no segments."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.core.memory.compaction import (
    REPLAN_DEAD_SHARE,
    AliveRows,
    SegmentPlan,
    plan_merges,
)

BLOCK = 10


def all_but(dead: set[int]) -> AliveRows:
    def alive_rows(first: int, stop: int) -> np.ndarray:
        return np.array([row for row in range(first, stop) if row not in dead], np.int64)

    return alive_rows


EVERY_ROW = all_but(set())


def blocks(first: int, stop: int) -> list[tuple[int, int]]:
    """The ranges of rows of the blocks number `first` to `stop`."""
    return [(place * BLOCK, (place + 1) * BLOCK) for place in range(first, stop)]


def shape(plan: tuple[SegmentPlan, ...]) -> list[tuple[int, int, int]]:
    """First row, row behind the last, and level of every extent."""
    return [(extent.first, extent.stop, extent.level) for extent in plan]


def test_full_blocks_by_hand() -> None:
    """Like counting in base 3: after 1, 2, 3, 4 and 9 blocks."""
    one = plan_merges((), blocks(0, 1), alive_rows=EVERY_ROW, fan_out=3)
    two = plan_merges(one, blocks(1, 2), alive_rows=EVERY_ROW, fan_out=3)
    three = plan_merges(two, blocks(2, 3), alive_rows=EVERY_ROW, fan_out=3)
    four = plan_merges(three, blocks(3, 4), alive_rows=EVERY_ROW, fan_out=3)
    nine = plan_merges(four, blocks(4, 9), alive_rows=EVERY_ROW, fan_out=3)
    assert shape(one) == [(0, 10, 0)]
    assert shape(two) == [(0, 10, 0), (10, 20, 0)]
    assert shape(three) == [(0, 30, 1)]
    assert shape(four) == [(0, 30, 1), (30, 40, 0)]
    assert shape(nine) == [(0, 90, 2)]


def test_what_did_not_change_is_the_same_extent() -> None:
    """By identity: a segment that is being built stays wanted."""
    plan = plan_merges((), blocks(0, 3), alive_rows=EVERY_ROW, fan_out=4)
    later = plan_merges(plan, [], alive_rows=all_but({0, 11}), fan_out=4)
    assert all(a is b for a, b in zip(plan, later, strict=True))
    merged = plan_merges(plan, blocks(3, 5), alive_rows=EVERY_ROW, fan_out=4)
    assert shape(merged) == [(0, 40, 1), (40, 50, 0)]
    again = plan_merges(merged, blocks(5, 6), alive_rows=EVERY_ROW, fan_out=4)
    assert again[0] is merged[0]


def test_rows_that_died_before_are_left_out() -> None:
    plan = plan_merges((), blocks(0, 1), alive_rows=all_but({3, 4}), fan_out=2)
    assert plan[0].rows.tolist() == [0, 1, 2, 5, 6, 7, 8, 9]
    merged = plan_merges(plan, blocks(1, 2), alive_rows=all_but({3, 4, 9, 10}), fan_out=2)
    assert merged[0].rows.tolist() == [0, 1, 2, 5, 6, 7, 8, *range(11, 20)]


def test_an_extent_is_planned_anew_when_half_of_its_rows_are_dead() -> None:
    assert REPLAN_DEAD_SHARE == 0.5
    plan = plan_merges((), blocks(0, 1), alive_rows=EVERY_ROW, fan_out=4)
    kept = plan_merges(plan, blocks(1, 2), alive_rows=all_but(set(range(4))), fan_out=4)
    assert kept[0] is plan[0]
    anew = plan_merges(plan, blocks(1, 2), alive_rows=all_but(set(range(5))), fan_out=4)
    assert shape(anew) == [(0, 10, 0), (10, 20, 0)]
    assert anew[0].rows.tolist() == [5, 6, 7, 8, 9]


def test_an_extent_that_has_died_keeps_its_place_without_rows() -> None:
    dead = all_but(set(range(BLOCK)))
    plan = plan_merges((), blocks(0, 1), alive_rows=EVERY_ROW, fan_out=4)
    empty = plan_merges(plan, blocks(1, 2), alive_rows=dead, fan_out=4)
    assert shape(empty) == [(0, 10, 0), (10, 20, 0)]
    assert empty[0].rows.tolist() == []
    assert plan_merges(empty, blocks(2, 3), alive_rows=dead, fan_out=4)[0] is empty[0]
    merged = plan_merges(empty, blocks(2, 4), alive_rows=dead, fan_out=4)
    assert merged[0].rows.tolist() == list(range(10, 40))


@given(
    count=st.integers(min_value=0, max_value=200),
    fan_out=st.integers(min_value=2, max_value=5),
    data=st.data(),
)
def test_any_plan_covers_all_blocks_in_few_extents_of_falling_levels(
    count: int, fan_out: int, data: st.DataObject
) -> None:
    """Also where rows die meanwhile, and however many blocks come at once."""
    plan: tuple[SegmentPlan, ...] = ()
    dead: set[int] = set()
    done = 0
    while done < count:
        step = data.draw(st.integers(min_value=1, max_value=max(1, count // 4)))
        dead |= data.draw(st.sets(st.integers(min_value=0, max_value=count * BLOCK), max_size=5))
        stop = min(done + step, count)
        plan = plan_merges(plan, blocks(done, stop), alive_rows=all_but(dead), fan_out=fan_out)
        done = stop
    edges = [0, *(extent.stop for extent in plan)]
    assert [extent.first for extent in plan] == edges[:-1]
    assert edges[-1] == count * BLOCK
    levels = [extent.level for extent in plan]
    assert levels == sorted(levels, reverse=True)
    for extent in plan:
        assert extent.stop - extent.first == BLOCK * fan_out**extent.level
        assert set(EVERY_ROW(extent.first, extent.stop).tolist()) - dead <= set(extent.rows)
        assert np.all(np.diff(extent.rows) > 0)
    # The digits of `count` in base `fan_out`.
    assert all(levels.count(level) < fan_out for level in levels)
    assert len(plan) <= (fan_out - 1) * (np.log(max(count, 1)) / np.log(fan_out) + 1) + 1e-9


@given(count=st.integers(min_value=1, max_value=40), cut=st.integers(min_value=0, max_value=40))
def test_without_deaths_blocks_may_come_one_by_one_or_at_once(count: int, cut: int) -> None:
    cut = min(cut, count)
    once = plan_merges((), blocks(0, count), alive_rows=EVERY_ROW)
    twice = plan_merges(
        plan_merges((), blocks(0, cut), alive_rows=EVERY_ROW),
        blocks(cut, count),
        alive_rows=EVERY_ROW,
    )
    assert shape(once) == shape(twice)


@pytest.mark.parametrize(("fan_out", "times"), [(2, 7), (4, 4)])
def test_a_row_is_built_into_as_many_segments_as_there_are_levels(fan_out: int, times: int) -> None:
    plan: tuple[SegmentPlan, ...] = ()
    built = 0
    for place in range(64):
        later = plan_merges(plan, blocks(place, place + 1), alive_rows=EVERY_ROW, fan_out=fan_out)
        built += sum(0 in extent.rows for extent in later if extent not in plan)
        plan = later
    assert built == times

"""Plans of segments come from a pure function, tested without a memory or segments."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.core.index.compaction import (
    AliveRows,
    SegmentPlan,
    exceeds_dead_share,
    plan_merges,
    without_dead_rows,
)

BLOCK = 10


def all_rows_but(dead: set[int]) -> AliveRows:
    def alive_rows(first: int, stop: int) -> np.ndarray:
        return np.array([row for row in range(first, stop) if row not in dead], np.int64)

    return alive_rows


EVERY_ROW = all_rows_but(set())


def blocks(first: int, stop: int) -> list[tuple[int, int]]:
    """The row ranges of blocks `first` to `stop - 1`."""
    return [(place * BLOCK, (place + 1) * BLOCK) for place in range(first, stop)]


def shape(plans: tuple[SegmentPlan, ...]) -> list[tuple[int, int, int]]:
    """Return first row, stop and level of every plan."""
    return [(plan.first, plan.stop, plan.level) for plan in plans]


def test_a_plan_that_does_not_change_is_the_same_object() -> None:
    """A segment that is being built for the plan can then still be attached."""
    plans = plan_merges((), blocks(0, 3), alive_rows=EVERY_ROW, fan_out=4)
    later = plan_merges(plans, [], alive_rows=all_rows_but({0, 11}), fan_out=4)
    assert all(a is b for a, b in zip(plans, later, strict=True))
    merged = plan_merges(plans, blocks(3, 5), alive_rows=EVERY_ROW, fan_out=4)
    assert shape(merged) == [(0, 40, 1), (40, 50, 0)]
    again = plan_merges(merged, blocks(5, 6), alive_rows=EVERY_ROW, fan_out=4)
    assert again[0] is merged[0]


def test_rows_with_a_tombstone_are_left_out() -> None:
    plans = plan_merges((), blocks(0, 1), alive_rows=all_rows_but({3, 4}), fan_out=2)
    assert plans[0].rows.tolist() == [0, 1, 2, 5, 6, 7, 8, 9]
    merged = plan_merges(plans, blocks(1, 2), alive_rows=all_rows_but({3, 4, 9, 10}), fan_out=2)
    assert merged[0].rows.tolist() == [0, 1, 2, 5, 6, 7, 8, *range(11, 20)]


def test_how_many_rows_may_be_dead_by_hand() -> None:
    """More than a tenth of many rows are too many, or more than half of few rows."""
    assert [exceeds_dead_share(rows) for rows in (0, 1, 10, 1_999)] == [1, 1, 6, 1_000]
    assert [exceeds_dead_share(rows) for rows in (2_000, 20_009)] == [201, 2_001]


def test_a_plan_is_made_again_when_too_many_of_its_rows_are_dead() -> None:
    plans = plan_merges((), blocks(0, 1), alive_rows=EVERY_ROW, fan_out=4)
    kept = plan_merges(plans, blocks(1, 2), alive_rows=all_rows_but(set(range(5))), fan_out=4)
    assert kept[0] is plans[0]
    again = plan_merges(plans, blocks(1, 2), alive_rows=all_rows_but(set(range(6))), fan_out=4)
    assert shape(again) == [(0, 10, 0), (10, 20, 0)]
    assert again[0].rows.tolist() == [6, 7, 8, 9]
    dead = all_rows_but(set(range(BLOCK)))
    empty = plan_merges(plans, blocks(1, 2), alive_rows=dead, fan_out=4)
    assert shape(empty) == [(0, 10, 0), (10, 20, 0)]
    assert empty[0].rows.tolist() == []
    assert plan_merges(empty, blocks(2, 3), alive_rows=dead, fan_out=4)[0] is empty[0]


@given(count=st.integers(0, 200), fan_out=st.integers(2, 5), data=st.data())
def test_plans_cover_all_blocks_in_few_segments_of_falling_levels(
    count: int, fan_out: int, data: st.DataObject
) -> None:
    """This holds for any number of new full blocks at once, and if rows die in between."""
    plans: tuple[SegmentPlan, ...] = ()
    dead: set[int] = set()
    done = 0
    while done < count:
        stop = min(done + data.draw(st.integers(1, max(1, count // 4))), count)
        dead |= data.draw(st.sets(st.integers(0, count * BLOCK), max_size=5))
        plans = plan_merges(
            plans, blocks(done, stop), alive_rows=all_rows_but(dead), fan_out=fan_out
        )
        done = stop
    edges = [0, *(plan.stop for plan in plans)]
    assert [plan.first for plan in plans] == edges[:-1]
    assert edges[-1] == count * BLOCK
    levels = [plan.level for plan in plans]
    assert levels == sorted(levels, reverse=True)
    for plan in plans:
        assert plan.stop - plan.first == BLOCK * fan_out**plan.level
        assert set(EVERY_ROW(plan.first, plan.stop).tolist()) - dead <= set(plan.rows)
        assert np.all(np.diff(plan.rows) > 0)
    # The numbers of plans per level are the digits of `count` in base `fan_out`.
    assert all(levels.count(level) < fan_out for level in levels)
    assert len(plans) <= (fan_out - 1) * (np.log(max(count, 1)) / np.log(fan_out) + 1) + 1e-9


@pytest.mark.parametrize(("fan_out", "times"), [(2, 7), (4, 4)])
def test_a_row_is_built_into_as_many_segments_as_there_are_levels(fan_out: int, times: int) -> None:
    plans: tuple[SegmentPlan, ...] = ()
    built = 0
    for place in range(64):
        later = plan_merges(plans, blocks(place, place + 1), alive_rows=EVERY_ROW, fan_out=fan_out)
        built += sum(0 in plan.rows for plan in later if plan not in plans)
        plans = later
    assert built == times


def test_between_full_blocks_only_plans_of_many_rows_are_made_again() -> None:
    """This check runs at every commit; plans of few rows must not depend on commits."""
    many, few = np.arange(3_000), np.arange(3_000, 3_010)
    plans = (
        SegmentPlan(first=0, stop=3_000, level=1, rows=many),
        SegmentPlan(first=3_000, stop=3_010, level=0, rows=few),
    )
    updated = without_dead_rows(plans, all_rows_but({*range(301), *range(3_000, 3_009)}))
    assert updated[0].rows.tolist() == list(range(301, 3_000))
    assert updated[1] is plans[1]

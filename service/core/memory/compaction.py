"""Which rows are sealed together into one segment: a pure function of the log.

A full block of live rows becomes a plan of level 0; `fan_out` neighbouring plans of one level are
merged into one plan of the next level. So n blocks lie in about `fan_out * log(n)` segments, and
each row is indexed `log(n)` times (a log-structured merge). A plan lists the rows that had no
tombstone when it was made; its segment holds no others. Plans follow from the order of events
alone: processes that have read the same log and built all plans hold the same segments and give
the same answers. Posted items are planned in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from service.core.items.posted_items import PostedItems
from service.core.types import Rows

FAN_OUT = 4
REPLAN_DEAD_SHARE = 0.5  # a plan is made again once this share of its rows has a tombstone

AliveRows = Callable[[int, int], Rows]


@dataclass(frozen=True, kw_only=True, eq=False)
class SegmentPlan:
    """A segment to be built over `rows` [n], ascending: what is to be kept of `first`..`stop`.

    `stop` is the number after the last row. Two plans are equal only if they are the same object.
    """

    first: int
    stop: int
    level: int
    rows: Rows


def plan_merges(
    plans: Sequence[SegmentPlan],
    full_blocks: Sequence[tuple[int, int]],
    *,
    alive_rows: AliveRows,
    fan_out: int = FAN_OUT,
) -> tuple[SegmentPlan, ...]:
    """Return the plans after `full_blocks`, each (first, stop), have become full, in order.

    `alive_rows(first, stop)` returns the numbers of the rows without a tombstone in that range.
    A plan that does not change is returned as the same object.
    """
    updated = [_without_dead_rows(plan, alive_rows) for plan in plans]
    for first, stop in full_blocks:
        updated.append(SegmentPlan(first=first, stop=stop, level=0, rows=alive_rows(first, stop)))
        while len(updated) >= fan_out and len({plan.level for plan in updated[-fan_out:]}) == 1:
            updated[-fan_out:] = [_merged(updated[-fan_out:], alive_rows)]
    return tuple(updated)


def plans_after_put(
    plans: Sequence[SegmentPlan], posted: PostedItems, *, before: int, block: int, fan_out: int
) -> tuple[SegmentPlan, ...]:
    """Return the plans of posted items after a put; `before` is how many were posted before it.

    A put that gives a bundle's item its own text back posts none. Each `block` of posted items gets
    a plan, whose rows are positions among all posted ones.
    """
    if posted.count == before or posted.count % block:
        return tuple(plans)
    full = [(posted.count - block, posted.count)]
    return plan_merges(plans, full, alive_rows=posted.alive_rows, fan_out=fan_out)


def _merged(neighbours: Sequence[SegmentPlan], alive_rows: AliveRows) -> SegmentPlan:
    first, stop = neighbours[0].first, neighbours[-1].stop
    level = neighbours[0].level + 1
    return SegmentPlan(first=first, stop=stop, level=level, rows=alive_rows(first, stop))


def _without_dead_rows(plan: SegmentPlan, alive_rows: AliveRows) -> SegmentPlan:
    """Return the same plan, or a new one if too many of its rows have a tombstone."""
    if not len(plan.rows):
        return plan
    alive = alive_rows(plan.first, plan.stop)
    if len(alive) > (1 - REPLAN_DEAD_SHARE) * len(plan.rows):
        return plan
    return SegmentPlan(first=plan.first, stop=plan.stop, level=plan.level, rows=alive)

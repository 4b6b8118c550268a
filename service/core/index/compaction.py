"""Decides which rows are sealed together into one segment, as a pure function of the log.

A full block of live rows becomes a plan of level 0. `fan_out` neighboring plans of one level are
merged into one plan of the next level. So n blocks lie in about `fan_out * log(n)` segments, and
each row is indexed `log(n)` times (a log-structured merge). A plan lists the rows that had no
tombstone when it was made. Plans depend only on the order of events. So processes that have read
the same log hold the same segments and give the same answers. Posted items are planned likewise.
The rows of their plans are positions among all posted items.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from service.core.index.parts import Part
from service.core.types import Rows

FAN_OUT = 4
# A plan is made again when a larger share of its rows has a tombstone. In a segment of few rows, a
# filtered search scans them anyway, so a rebuilt graph would only save memory.
MOST_DEAD, MOST_DEAD_OF_FEW, FEW_ROWS = 0.1, 0.5, 2_000

AliveRows = Callable[[int, int], Rows]


@dataclass(frozen=True, kw_only=True, eq=False)
class SegmentPlan:
    """A segment to build over `rows` [n], ascending: the rows to keep from `first` to `stop` - 1.

    Two plans are equal only if they are the same object.
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
    """Return the plans after each of `full_blocks` (first, stop) has become full, in this order.

    `alive_rows(first, stop)` returns the numbers of the rows without a tombstone in that range. A
    plan that does not change is returned as the same object.
    """
    updated = [_without_dead_rows(plan, alive_rows) for plan in plans]
    for first, stop in full_blocks:
        updated.append(SegmentPlan(first=first, stop=stop, level=0, rows=alive_rows(first, stop)))
        while len(updated) >= fan_out and len({plan.level for plan in updated[-fan_out:]}) == 1:
            updated[-fan_out:] = [_merged(updated[-fan_out:], alive_rows)]
    return tuple(updated)


def exceeds_dead_share(rows: int) -> int:
    """Return the smallest number of dead rows that exceeds what a plan of `rows` may have."""
    return int((MOST_DEAD_OF_FEW if rows < FEW_ROWS else MOST_DEAD) * rows) + 1


def without_dead_rows(
    plans: Sequence[SegmentPlan], alive_rows: AliveRows
) -> tuple[SegmentPlan, ...]:
    """Return the plans when no block is full; large plans with too many dead rows are remade.

    Plans of few rows wait for the next full block. The moment of this call depends on how changes
    are grouped into commits, but plans must not depend on that.
    """
    return tuple(
        plan if len(plan.rows) < FEW_ROWS else _without_dead_rows(plan, alive_rows)
        for plan in plans
    )


def unsealed(plans: Sequence[SegmentPlan], parts: Sequence[Part]) -> Iterator[SegmentPlan]:
    """Yield the plans whose segment is not among `parts`."""
    sealed = {id(part.rows) for part in parts if part.sealed}
    return (plan for plan in plans if id(plan.rows) not in sealed)


def _merged(neighbors: Sequence[SegmentPlan], alive_rows: AliveRows) -> SegmentPlan:
    first, stop = neighbors[0].first, neighbors[-1].stop
    level = neighbors[0].level + 1
    return SegmentPlan(first=first, stop=stop, level=level, rows=alive_rows(first, stop))


def _without_dead_rows(plan: SegmentPlan, alive_rows: AliveRows) -> SegmentPlan:
    """Return the same plan, or a new one if too many of its rows have a tombstone."""
    if not len(plan.rows):
        return plan
    alive = alive_rows(plan.first, plan.stop)
    if len(plan.rows) - len(alive) < exceeds_dead_share(len(plan.rows)):
        return plan
    return SegmentPlan(first=plan.first, stop=plan.stop, level=plan.level, rows=alive)

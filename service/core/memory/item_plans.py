"""Which posted items lie together in one index: a pure function of the log, as it is for rows."""

from __future__ import annotations

from collections.abc import Sequence

from service.core.items.item_memory import ItemMemory
from service.core.memory.compaction import SegmentPlan, plan_merges


def plans_after_put(
    plans: Sequence[SegmentPlan],
    items: ItemMemory,
    *,
    posted_before: int,
    block: int,
    fan_out: int,
) -> tuple[SegmentPlan, ...]:
    """Return the plans after one item was put, before which `posted_before` had been posted.

    A plan is made when `block` items more have been posted; its rows are positions among them.
    """
    posted = items.posted
    if posted.count == posted_before or posted.count % block:
        return tuple(plans)
    full = [(posted.count - block, posted.count)]
    return plan_merges(plans, full, alive_rows=posted.alive_rows, fan_out=fan_out)

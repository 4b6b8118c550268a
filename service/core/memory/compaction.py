"""Which live rows belong together in a frozen segment: a pure function of the log.

Full blocks become extents of level 0; `fan_out` neighbours of one level become one of the next, so
that n blocks lie in about `fan_out * log(n)` segments and each row is indexed `log(n)` times (a
log-structured merge). An extent lists the rows that were alive when it was planned: sealing leaves
the others out. Since plans follow from the order of events alone, processes that have read the same
log, and have built what is planned, hold the same segments and give the same answers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from service.core.types import Rows

FAN_OUT = 4
DECAYED = 0.5  # part of an extent's rows whose death makes it worth building anew

Living = Callable[[int, int], Rows]


@dataclass(frozen=True, kw_only=True, eq=False)
class Extent:
    """The rows `first` to `stop`, of which `rows` [n], ascending, are to be kept."""

    first: int
    stop: int
    level: int
    rows: Rows


def extended(
    extents: Sequence[Extent],
    blocks: Sequence[tuple[int, int]],
    *,
    living: Living,
    fan_out: int = FAN_OUT,
) -> tuple[Extent, ...]:
    """The plan when `blocks` (first, stop) have become full, in order.

    `living(first, stop)` gives the numbers of the rows alive in a range.
    """
    plan = [_kept(extent, living) for extent in extents]
    for first, stop in blocks:
        plan.append(Extent(first=first, stop=stop, level=0, rows=living(first, stop)))
        while len(plan) >= fan_out and len({extent.level for extent in plan[-fan_out:]}) == 1:
            merged = plan[-fan_out:]
            first, stop = merged[0].first, merged[-1].stop
            plan[-fan_out:] = [
                Extent(
                    first=first,
                    stop=stop,
                    level=merged[0].level + 1,
                    rows=living(first, stop),
                )
            ]
    return tuple(plan)


def _kept(extent: Extent, living: Living) -> Extent:
    """The extent, or one without its dead rows if those are many."""
    if not len(extent.rows):
        return extent
    alive = living(extent.first, extent.stop)
    if len(alive) > (1 - DECAYED) * len(extent.rows):
        return extent
    return Extent(first=extent.first, stop=extent.stop, level=extent.level, rows=alive)

"""The rows learned since the bundle: blocks of live rows, and the segments that they become."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from service.core.bundle.bundle import Bundle
from service.core.index.compaction import (
    FEW_ROWS,
    SegmentPlan,
    exceeds_dead_share,
    plan_merges,
    unsealed,
    without_dead_rows,
)
from service.core.index.parts import with_sealed
from service.core.memory.part import LiveRows, NewRow, RowPart
from service.core.types import Rows


@dataclass(frozen=True, kw_only=True)
class LearnedRows:
    """The rows from number `first` on, in `parts`, in order of their numbers.

    `plans` say which of them belong in one segment.
    """

    first: int
    parts: tuple[RowPart, ...] = ()
    plans: tuple[SegmentPlan, ...] = ()

    @property
    def stop(self) -> int:
        """The number that the next learned row will get."""
        return self.parts[-1].stop if self.parts else self.first

    @property
    def stored_rows(self) -> int:
        """The number of stored rows, including sealed and dead ones."""
        return sum(part.stored_rows for part in self.parts)

    @property
    def sealed_rows(self) -> int:
        """The number of rows in segments, including dead ones."""
        return sum(part.stored_rows for part in self.parts if part.sealed)

    @property
    def dead_rows(self) -> int:
        """The number of rows that were replaced or deleted and are still stored."""
        return sum(part.dead_rows for part in self.parts)

    @property
    def stored_bytes(self) -> int:
        """The estimated main memory of the rows."""
        return sum(part.stored_bytes for part in self.parts)

    def within(self, first: int, stop: int) -> list[RowPart]:
        """Return the parts that lie entirely within [first, stop)."""
        return [part for part in self.parts if first <= part.first and part.stop <= stop]

    def alive_within(self, first: int, stop: int) -> Rows:
        """Return the rows without a tombstone in parts that lie within [first, stop)."""
        rows = [part.alive_rows() for part in self.within(first, stop)]
        return np.concatenate([np.zeros(0, np.int64), *rows])

    def unsealed_plans(self) -> Iterator[SegmentPlan]:
        """Yield the plans whose segment is not attached yet."""
        return unsealed(self.plans, self.parts)

    def spare_deaths(self) -> float:
        """Return how many more rows may die before a plan must be made again.

        Plans of few rows wait for the next full block; otherwise they would be remade too often.
        """
        spare = []
        for plan in self.plans:
            if len(plan.rows) >= FEW_ROWS:
                parts = self.within(plan.first, plan.stop)
                alive = sum(part.stored_rows - part.dead_rows for part in parts)
                spare.append(exceeds_dead_share(len(plan.rows)) - (len(plan.rows) - alive))
        return min(spare, default=math.inf)

    def planned(self, *, fan_out: int) -> LearnedRows:
        """Return the rows with plans for full blocks, and new plans if too many rows have died."""
        planned = self.plans[-1].stop if self.plans else self.first
        full_blocks = [
            (part.first, part.stop)
            for part in self.parts
            if isinstance(part, LiveRows) and not part.room and part.first >= planned
        ]
        if not full_blocks:
            return replace(self, plans=without_dead_rows(self.plans, self.alive_within))
        plans = plan_merges(self.plans, full_blocks, alive_rows=self.alive_within, fan_out=fan_out)
        return replace(self, plans=plans)

    def with_sealed(self, sealed: RowPart) -> LearnedRows:
        """Return the rows with one sealed part instead of the parts that held its rows."""
        return replace(self, parts=with_sealed(self.parts, sealed))

    def with_tombstones(self, rows: Sequence[int]) -> LearnedRows:
        """Return the rows, with those of these numbers dead as well."""
        return replace(self, parts=tuple(part.with_tombstones(rows) for part in self.parts))

    def with_rows(self, rows: Sequence[NewRow], bundle: Bundle, *, block_rows: int) -> LearnedRows:
        """Write rows into the last block, then into new blocks of `block_rows` when it is full."""
        parts = list(self.parts)
        while rows:
            last = parts[-1] if parts else None
            if not isinstance(last, LiveRows) or not last.room:
                last = LiveRows.block(
                    first=last.stop if last else self.first,
                    capacity=block_rows,
                    dimension=bundle.manifest.encoder.dimension,
                    device=bundle.device,
                )
                parts.append(last)
            parts[-1] = last.append(rows[: last.room])
            rows = rows[last.room :]
        return replace(self, parts=tuple(parts))

"""What a frozen segment offers to the memory, whichever index library built it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from service.core.types import Bits, Bools, Floats, Halves, Rows

Progress = Callable[[int], None]  # called with the number of rows that are done


@dataclass(frozen=True, kw_only=True, slots=True)
class RowFilter:
    """Which rows a search may return: rows in [start, stop) whose bit in `alive` is set.

    `alive` is a little-endian bitmap over all rows of the segment, None if no row is dead.
    """

    start: int
    stop: int
    alive: Bits | None = None

    def selected(self) -> int:
        """Return about how many rows pass; whole bytes of the bitmap are counted."""
        if self.alive is None:
            return self.stop - self.start
        return int(np.bitwise_count(self.alive[self.start // 8 : -(-self.stop // 8)]).sum())

    def allows(self, rows: Rows) -> Bools:
        """Return which of `rows`, an array of any shape, pass; row -1 never does."""
        inside = (rows >= self.start) & (rows < self.stop)
        if self.alive is None:
            return np.asarray(inside)
        bits = self.alive[np.maximum(rows, 0) >> 3] >> (rows & 7).astype(np.uint8)
        return np.asarray(inside & (bits & 1).astype(bool))

    def mask(self) -> Bools:
        """Return the filter as booleans over [start, stop)."""
        if self.alive is None:
            return np.ones(self.stop - self.start, bool)
        return np.unpackbits(self.alive, bitorder="little")[self.start : self.stop].astype(bool)


class Segment(Protocol):
    """A frozen set of unit vectors that is searched by inner product."""

    @property
    def rows(self) -> int:
        """The number of rows in the segment."""
        ...

    def search(
        self, queries: Floats, *, count: int, ef: int, row_filter: RowFilter | None
    ) -> tuple[Floats, Rows]:
        """Find the `count` nearest rows of each query [B, d].

        `ef` is the length of the graph's queue. Returns inner products [B, count], descending,
        and rows [B, count]; row -1 fills the places for which there is no row.
        """
        ...

    def vectors(self, rows: Rows) -> Halves:
        """Return the vectors [n, d] of `rows` [n], bit for bit as they were given to `build`."""
        ...


def batches(rows: int, size: int) -> Iterator[slice]:
    """Cut `rows` rows into slices of at most `size`."""
    return (slice(start, min(start + size, rows)) for start in range(0, rows, size))

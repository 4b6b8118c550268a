"""What a view asks of a part of the memory: a range of row numbers, searched as one.

Shapes: B queries, b rows asked for, n votes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray

from service.core.types import Bits, Bools, Floats, Halves, Indices, RowKind, Rows

Votes = tuple[Indices, NDArray[np.int64]]


class Part(Protocol):
    """Rows numbered `first` to `stop`, some of which may be dead or no longer stored."""

    @property
    def first(self) -> int:
        """The number of the first row."""
        ...

    @property
    def stop(self) -> int:
        """The number behind the last row."""
        ...

    @property
    def stored(self) -> int:
        """How many rows take up room."""
        ...

    @property
    def dead(self) -> int:
        """How many of them were replaced or deleted."""
        ...

    def search(
        self,
        queries: Floats,
        *,
        count: int,
        ef: int | None,
        kind: RowKind | None,
        above: Floats | None = None,
    ) -> tuple[Floats, Rows]:
        """The nearest living rows [B, b] of a kind (None: both), by their numbers; -1 fills up.

        `ef` is the length of a graph's queue, None for an exact search. Rows that are not more
        similar than `above` [B] may be left out: others have filled the depth already.
        """
        ...

    def is_instance(self, rows: Rows) -> Bools:
        """Which of `rows` [b], all of this part, are instance rows."""
        ...

    def votes(self, rows: Rows) -> Votes:
        """The columns [n] that `rows` [b] vote for, row after row, and how many each."""
        ...

    def text(self, row: int) -> str:
        """The text that a row's key was made from."""
        ...

    def vectors(self, rows: Rows) -> Halves:
        """The vectors [b, d] of `rows` [b]."""
        ...

    def living(self) -> Rows:
        """The numbers of all living rows, ascending."""
        ...

    def bury(self, rows: Sequence[int]) -> Self:
        """The same part with these rows dead."""
        ...


def without(alive: Bits | None, places: Sequence[int], size: int) -> Bits:
    """A copy of the bitmap over `size` places (None: all alive) with some of them dead."""
    bits = np.packbits(np.ones(size, bool), bitorder="little") if alive is None else alive.copy()
    dead = np.asarray(places, np.int64)
    # Several may share a byte, so not by plain assignment.
    np.bitwise_and.at(bits, dead // 8, (0xFF ^ (1 << (dead % 8))).astype(np.uint8))
    return bits


def dead_places(alive: Bits | None, size: int) -> int:
    """How many of the first `size` places are dead."""
    if alive is None:
        return 0
    return size - int(np.unpackbits(alive, bitorder="little", count=size).sum())


def living_places(alive: Bits | None, size: int) -> Rows:
    """The first `size` places but for the dead ones, ascending."""
    if alive is None:
        return np.arange(size)
    return np.flatnonzero(np.unpackbits(alive, bitorder="little", count=size))


def gather(indptr: NDArray[np.int64], indices: Indices, places: Rows) -> Votes:
    """Rows `places` [b] of a CSR matrix: their entries [n], row after row, and how many each."""
    starts = indptr[places]
    counts = np.asarray(indptr[places + 1] - starts, np.int64)
    ends = np.cumsum(counts)
    # Position of each entry in `indices`: its row's start, plus its place within the row.
    within = np.arange(ends[-1] if len(ends) else 0) + np.repeat(starts - (ends - counts), counts)
    return np.asarray(indices[within], np.int32), counts

"""Live rows: what the memory learned since its bundle was written, searched exactly.

Storage is append-only and has one writer. A view keeps a count; rows beyond it are not seen, so a
row is written first and published after.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from service.core.index import RowFilter
from service.core.index.exact import LiveVectors
from service.core.types import Bits, Bools, Floats, Halves, Indices, RowKind, Rows


@dataclass(frozen=True, kw_only=True)
class NewRow:
    """A row to append: what it says, which columns of V it votes for."""

    kind: RowKind
    text: str
    votes: Indices


class LiveStore:
    """A block of rows: vectors, kinds, value rows and texts side by side."""

    def __init__(self, *, capacity: int, dimension: int) -> None:
        """Reserve `capacity` rows of `dimension`."""
        self.capacity = capacity
        self.vectors = LiveVectors(capacity=capacity, dimension=dimension)
        self.is_instance: Bools = np.zeros(capacity, bool)
        self.votes: list[Indices] = []
        self.texts: list[str] = []

    def write(self, start: int, rows: Sequence[NewRow], vectors: Halves) -> None:
        """Put rows with their vectors [n, d] at `start`, the count of the newest view.

        Only the writer calls this. Rows from `start` on were never published; an earlier attempt
        that failed half-way may have left some.
        """
        self.is_instance[start : start + len(rows)] = [row.kind is RowKind.INSTANCE for row in rows]
        self.votes[start:] = [row.votes for row in rows]
        self.texts[start:] = [row.text for row in rows]
        self.vectors.write(start, vectors)


@dataclass(frozen=True, kw_only=True)
class LiveRows:
    """The rows of one store that a view sees: `first` is the memory's number of the store's row 0.

    `alive` is a bitmap over the store's capacity, None while no row was replaced or deleted.
    """

    store: LiveStore
    first: int
    count: int
    alive: Bits | None = None

    def __contains__(self, row: int) -> bool:
        """Whether the memory's row number lies here."""
        return self.first <= row < self.first + self.count

    @property
    def dead(self) -> int:
        """How many rows were replaced or deleted."""
        return dead_rows(self.alive, self.count)

    def search(self, queries: Floats, *, count: int, kind: RowKind | None) -> tuple[Floats, Rows]:
        """The nearest rows [B, count] of a kind (None: both), numbered as the memory does."""
        among = RowFilter(start=0, stop=self.count, alive=self._selected(kind))
        similarities, rows = self.store.vectors.search(
            queries, count=min(count, self.count), among=among
        )
        return similarities, np.where(rows < 0, rows, rows + self.first)

    def bury(self, row: int) -> LiveRows:
        """The same rows with one more dead, given by the memory's number."""
        return replace(self, alive=without(self.alive, row - self.first, self.store.capacity))

    def _selected(self, kind: RowKind | None) -> Bits | None:
        if kind is None:
            return self.alive
        instance = self.store.is_instance[: self.count]
        of_kind = np.packbits(instance == (kind is RowKind.INSTANCE), bitorder="little")
        return of_kind if self.alive is None else of_kind & self.alive[: len(of_kind)]


def without(alive: Bits | None, row: int, rows: int) -> Bits:
    """A copy of the bitmap over `rows` rows (None: all alive) with one row dead."""
    bits = np.packbits(np.ones(rows, bool), bitorder="little") if alive is None else alive.copy()
    bits[row // 8] &= 0xFF ^ (1 << (row % 8))
    return bits


def dead_rows(alive: Bits | None, rows: int) -> int:
    """How many of the first `rows` rows are dead."""
    if alive is None:
        return 0
    return rows - int(np.unpackbits(alive, bitorder="little", count=rows).sum())

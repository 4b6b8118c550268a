"""Live rows: what the memory learned last, searched exactly.

Storage is append-only and has one writer. A view keeps a count; rows beyond it are not seen, so a
row is written first and published after.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from service.core.index.exact import LiveVectors
from service.core.index.protocol import RowFilter
from service.core.memory.part import Votes, dead_places, living_places, without
from service.core.types import Bits, Bools, Floats, Halves, Indices, RowKind, Rows


@dataclass(frozen=True, kw_only=True, slots=True)
class NewRow:
    """A row to append: what it says, which columns of V it votes for, and its vector [d]."""

    kind: RowKind
    text: str
    votes: Indices
    vector: Halves


class LiveStore:
    """A block of rows: vectors, kinds, value rows and texts side by side."""

    def __init__(self, *, capacity: int, dimension: int) -> None:
        """Reserve `capacity` rows of `dimension`."""
        self.capacity = capacity
        self.vectors = LiveVectors(capacity=capacity, dimension=dimension)
        self.is_instance: Bools = np.zeros(capacity, bool)
        self.votes: list[Indices] = []
        self.texts: list[str] = []

    def write(self, start: int, rows: Sequence[NewRow]) -> None:
        """Put rows at `start`, the count of the newest view.

        Only the writer calls this. Rows from `start` on were never published; an earlier attempt
        that failed half-way may have left some.
        """
        self.is_instance[start : start + len(rows)] = [row.kind is RowKind.INSTANCE for row in rows]
        self.votes[start:] = [row.votes for row in rows]
        self.texts[start:] = [row.text for row in rows]
        self.vectors.write(start, np.stack([row.vector for row in rows]))


@dataclass(frozen=True, kw_only=True)
class LiveRows:
    """The rows of one store that a view sees: `first` is the memory's number of the store's row 0.

    `alive` is a bitmap over the store's capacity, None while no row was replaced or deleted.
    """

    store: LiveStore
    first: int
    count: int
    alive: Bits | None = None
    dead: int = 0

    @property
    def stop(self) -> int:
        """See `Part`."""
        return self.first + self.count

    @property
    def stored(self) -> int:
        """See `Part`."""
        return self.count

    @property
    def full(self) -> bool:
        """Whether nothing more can be appended."""
        return self.count == self.store.capacity

    def search(
        self,
        queries: Floats,
        *,
        count: int,
        ef: int | None,
        kind: RowKind | None,
        above: Floats | None = None,
    ) -> tuple[Floats, Rows]:
        """See `Part`; exact and all at once, so `ef` and `above` change nothing."""
        row_filter = RowFilter(start=0, stop=self.count, alive=self._selected(kind))
        similarities, rows = self.store.vectors.search(
            queries, count=min(count, self.count), row_filter=row_filter
        )
        return similarities, np.where(rows < 0, rows, rows + self.first)

    def is_instance(self, rows: Rows) -> Bools:
        """See `Part`."""
        return self.store.is_instance[rows - self.first]

    def votes(self, rows: Rows) -> Votes:
        """See `Part`."""
        pieces = [self.store.votes[row - self.first] for row in rows.tolist()]
        return np.concatenate(pieces), np.array([len(piece) for piece in pieces], np.int64)

    def text(self, row: int) -> str:
        """See `Part`."""
        return self.store.texts[row - self.first]

    def vectors(self, rows: Rows) -> Halves:
        """See `Part`."""
        return self.store.vectors.read(rows - self.first)

    def living(self) -> Rows:
        """See `Part`."""
        return living_places(self.alive, self.count) + self.first

    def bury(self, rows: Sequence[int]) -> LiveRows:
        """See `Part`."""
        alive = without(self.alive, [row - self.first for row in rows], self.store.capacity)
        return replace(self, alive=alive, dead=dead_places(alive, self.count))

    def append(self, rows: Sequence[NewRow]) -> LiveRows:
        """The same rows and more behind them, as many as the store has room for."""
        self.store.write(self.count, rows)
        return replace(self, count=self.count + len(rows))

    def _selected(self, kind: RowKind | None) -> Bits | None:
        if kind is None:
            return self.alive
        instance = self.store.is_instance[: self.count]
        of_kind = np.packbits(instance == (kind is RowKind.INSTANCE), bitorder="little")
        return of_kind if self.alive is None else of_kind & self.alive[: len(of_kind)]

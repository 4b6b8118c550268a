"""Live rows: what the memory learned last, searched exactly.

Storage is append-only and has one writer. Each view keeps the number of rows that it sees, so a row
is written first and published afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from service.core.index.bitmaps import alive_places, count_dead, set_tombstones
from service.core.index.device_live import DeviceLiveVectors
from service.core.index.devices import ScanDevice
from service.core.index.exact import LiveVectors
from service.core.index.protocol import RowFilter
from service.core.memory.memory_size import bytes_of_row
from service.core.memory.part import Votes
from service.core.types import Bits, Bools, Floats, Halves, Indices, RowKind, Rows


@dataclass(frozen=True, kw_only=True, slots=True)
class NewRow:
    """A row to append: its text, the columns of V that it votes for, and its key, a vector [d].

    `weights` are those of the votes, None where each weighs 1.
    """

    kind: RowKind
    text: str
    votes: Indices
    vector: Halves
    weights: Floats | None = None

    @property
    def size(self) -> int:
        """Bytes of main memory."""
        return bytes_of_row(
            self.text,
            votes=len(self.votes),
            dimension=len(self.vector),
            weighted=self.weights is not None,
        )


class LiveStore:
    """Storage of one block of rows: keys, kinds, votes and texts, each at the same position.

    `weights` holds those of the few rows whose votes do not all weigh 1, by position.
    """

    def __init__(self, *, capacity: int, dimension: int, device: ScanDevice | None = None) -> None:
        """Reserve `capacity` rows with keys of `dimension`, which `device` searches if given."""
        self.capacity = capacity
        self.vectors: LiveVectors | DeviceLiveVectors = (
            LiveVectors(capacity=capacity, dimension=dimension)
            if device is None
            else DeviceLiveVectors(device, capacity=capacity, dimension=dimension)
        )
        self.is_instance: Bools = np.zeros(capacity, bool)
        self.votes: list[Indices] = []
        self.weights: dict[int, Floats] = {}
        self.texts: list[str] = []

    def write(self, start: int, rows: Sequence[NewRow]) -> None:
        """Write rows at `start`, the number of rows that the newest view counts.

        Only the writer calls this. It overwrites what a draft that was dropped has left behind
        `start`; no published view counts those rows.
        """
        self.is_instance[start : start + len(rows)] = [row.kind is RowKind.INSTANCE for row in rows]
        self.votes[start:] = [row.votes for row in rows]
        self._write_weights(start, rows)
        self.texts[start:] = [row.text for row in rows]
        self.vectors.write(start, np.stack([row.vector for row in rows]))

    def _write_weights(self, start: int, rows: Sequence[NewRow]) -> None:
        for place, row in enumerate(rows, start):
            if row.weights is not None:
                self.weights[place] = row.weights
            elif self.weights:
                self.weights.pop(place, None)


@dataclass(frozen=True, kw_only=True)
class LiveRows:
    """The part of the memory that holds the first `count` rows of one store.

    `first` is the row number of the store's row 0. `alive` is a bitmap over the store's capacity,
    None while no row is dead. `stored_bytes` estimates what the rows take of main memory.
    """

    store: LiveStore
    first: int
    count: int
    alive: Bits | None = None
    dead_rows: int = 0
    stored_bytes: int = 0

    @property
    def stop(self) -> int:
        """The number after the last row."""
        return self.first + self.count

    @property
    def stored_rows(self) -> int:
        """How many rows are stored, dead ones included."""
        return self.count

    @property
    def full(self) -> bool:
        """Whether the store has no room for another row."""
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
        """Find the nearest rows exactly, as `Part.search` says; `ef` and `above` change nothing."""
        row_filter = RowFilter(start=0, stop=self.count, alive=self._alive_of_kind(kind))
        similarities, rows = self.store.vectors.search(
            queries, count=min(count, self.count), row_filter=row_filter
        )
        return similarities, np.where(rows < 0, rows, rows + self.first)

    def is_instance(self, rows: Rows) -> Bools:
        """Return which of `rows` [b] are instance rows."""
        return self.store.is_instance[rows - self.first]

    def votes(self, rows: Rows) -> Votes:
        """Return the columns [n] that `rows` [b] vote for, row after row, and counts [b]."""
        pieces = [self.store.votes[row - self.first] for row in rows.tolist()]
        return np.concatenate(pieces), np.array([len(piece) for piece in pieces], np.int64)

    def vote_weights(self, rows: Rows) -> Floats | None:
        """Return the weights [n] of the votes of `rows` [b], None where each weighs 1."""
        weights = self.store.weights
        if not weights:
            return None
        places = (rows - self.first).tolist()
        if not any(place in weights for place in places):
            return None
        votes = self.store.votes
        return np.concatenate(
            [weights.get(place, np.ones(len(votes[place]), np.float32)) for place in places]
        )

    def text(self, row: int) -> str:
        """Return the text that was encoded as the row's key."""
        return self.store.texts[row - self.first]

    def texts_of(self, rows: Rows) -> list[str]:
        """Return the texts [b] of `rows` [b]."""
        texts = self.store.texts
        return [texts[place] for place in (rows - self.first).tolist()]

    def vectors(self, rows: Rows) -> Halves:
        """Return the keys [b, d] of `rows` [b]."""
        return self.store.vectors.read(rows - self.first)

    def alive_rows(self) -> Rows:
        """Return the numbers of all rows without a tombstone, ascending."""
        return alive_places(self.alive, self.count) + self.first

    def with_tombstones(self, rows: Sequence[int]) -> LiveRows:
        """Return the same part in which `rows` are dead as well."""
        places = [row - self.first for row in rows]
        alive = set_tombstones(self.alive, places, self.store.capacity)
        return replace(self, alive=alive, dead_rows=count_dead(alive, self.count))

    def append(self, rows: Sequence[NewRow]) -> LiveRows:
        """Write rows behind the present ones and return the part that counts them.

        Raises `ValueError` if the store has no room for all of them.
        """
        self.store.write(self.count, rows)
        size = self.stored_bytes + sum(row.size for row in rows)
        return replace(self, count=self.count + len(rows), stored_bytes=size)

    def _alive_of_kind(self, kind: RowKind | None) -> Bits | None:
        if kind is None:
            return self.alive
        instance = self.store.is_instance[: self.count]
        of_kind = np.packbits(instance == (kind is RowKind.INSTANCE), bitorder="little")
        return of_kind if self.alive is None else of_kind & self.alive[: len(of_kind)]

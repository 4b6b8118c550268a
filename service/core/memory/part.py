"""The protocol of a part of the memory: a range of row numbers that is searched as a whole.

A dead row is one with a tombstone: it was replaced or deleted.

Shapes: B queries, b rows, n votes, d dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray

from service.core.types import Bools, Floats, Halves, Indices, RowKind, Rows

Votes = tuple[Indices, NDArray[np.int64]]
WeightedVotes = tuple[Indices, NDArray[np.int64], Floats | None]  # None: every vote weighs 1


class Part(Protocol):
    """The rows numbered `first` to `stop`; some may be dead, some no longer stored."""

    @property
    def first(self) -> int:
        """The number of the first row."""
        ...

    @property
    def stop(self) -> int:
        """The number after the last row."""
        ...

    @property
    def stored_rows(self) -> int:
        """How many rows are stored, dead ones included."""
        ...

    @property
    def stored_bytes(self) -> int:
        """What the stored rows take of main memory, estimated."""
        ...

    @property
    def dead_rows(self) -> int:
        """How many of the stored rows have a tombstone."""
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
        """Find the `count` nearest alive rows of each query [B, d], of one kind or of both (None).

        Returns similarities and row numbers, [B, at most `count`]; row -1 fills places for which
        there is no row. `ef` is the length of a graph's queue, None for exact search. The caller
        does not need rows with a similarity of at most `above` [B], so they may be missing.
        """
        ...

    def is_instance(self, rows: Rows) -> Bools:
        """Return which of `rows` [b], all of this part, are instance rows."""
        ...

    def votes(self, rows: Rows) -> Votes:
        """Return the columns [n] that `rows` [b] vote for, row after row, and counts [b]."""
        ...

    def vote_weights(self, rows: Rows) -> Floats | None:
        """Return the weights [n] of the votes of `rows` [b], None where each weighs 1."""
        ...

    def text(self, row: int) -> str:
        """Return the text that was encoded as the row's key."""
        ...

    def texts_of(self, rows: Rows) -> list[str]:
        """Return the texts [b] of `rows` [b], quicker than `text` for each."""
        ...

    def vectors(self, rows: Rows) -> Halves:
        """Return the keys [b, d] of `rows` [b]."""
        ...

    def alive_rows(self) -> Rows:
        """Return the numbers of all rows without a tombstone, ascending."""
        ...

    def with_tombstones(self, rows: Sequence[int]) -> Self:
        """Return the same part in which `rows` are dead as well."""
        ...


def joined_weights(pieces: Sequence[tuple[Floats | None, int]]) -> Floats | None:
    """Join the weights of pieces of so many votes each; None where every vote weighs 1."""
    if all(weights is None for weights, _ in pieces):
        return None
    return np.concatenate(
        [np.ones(votes, np.float32) if weights is None else weights for weights, votes in pieces]
    )


def gather(indptr: NDArray[np.int64], indices: Indices, places: Rows) -> Votes:
    """Return the columns [n] of rows `places` [b] of a CSR matrix, row by row, and counts [b]."""
    entries, counts = entries_of(indptr, places)
    return np.asarray(indices[entries], np.int32), counts


def entries_of(indptr: NDArray[np.int64], places: Rows) -> tuple[Rows, NDArray[np.int64]]:
    """Return the positions [n] of the entries of rows `places` [b] of a CSR matrix, counts [b]."""
    starts = indptr[places]
    counts = np.asarray(indptr[places + 1] - starts, np.int64)
    ends = np.cumsum(counts)
    # An entry's position is its row's start, plus its place within the row.
    entries = np.arange(ends[-1] if len(ends) else 0) + np.repeat(starts - (ends - counts), counts)
    return entries, counts

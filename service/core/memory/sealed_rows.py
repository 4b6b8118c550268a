"""Sealed rows: live rows that were frozen into a segment, as one part of the memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from service.core.index.bitmaps import alive_places, count_dead, set_tombstones
from service.core.index.exact import exact_search, pad
from service.core.index.protocol import RowFilter, Segment
from service.core.memory.compaction import SegmentPlan
from service.core.memory.memory_size import bytes_of_row
from service.core.memory.part import (
    Part,
    Votes,
    entries_of,
    gather,
    joined_weights,
)
from service.core.types import Bits, Bools, Floats, Halves, Indices, RowKind, Rows

# The first, short walk through a segment looks for this many rows with a queue of this length.
FIRST_ROWS = 96
FIRST_QUEUE = 128

_Scalar = TypeVar("_Scalar", bound=np.generic)


@dataclass(frozen=True, kw_only=True)
class SealedRows:
    """The rows of a plan and their segment, which is None if the plan has no rows.

    Position p of the arrays, of the texts and of the segment belongs to row `plan.rows[p]`.
    """

    plan: SegmentPlan
    segment: Segment | None
    instances: Bools  # [n], which rows are instance rows
    indptr: NDArray[np.int64]  # [n + 1], with `indices` the rows of V in CSR form
    indices: Indices
    texts: tuple[str, ...]
    weights: Floats | None = None  # of `indices`; None: every vote weighs 1
    stored_bytes: int = 0
    alive: Bits | None = None
    dead_rows: int = 0

    @property
    def first(self) -> int:
        """The number of the first row."""
        return self.plan.first

    @property
    def stop(self) -> int:
        """The number after the last row."""
        return self.plan.stop

    @property
    def stored_rows(self) -> int:
        """How many rows are stored, dead ones included."""
        return len(self.plan.rows)

    def search(
        self,
        queries: Floats,
        *,
        count: int,
        ef: int | None,
        kind: RowKind | None,
        above: Floats | None = None,
    ) -> tuple[Floats, Rows]:
        """Find the nearest rows as `Part.search` says.

        Most of many segments hold few of the nearest rows. A short walk through the graph finds
        those; a long walk follows only where the last row found is more similar than `above`.
        """
        if self.segment is None:
            return np.zeros((len(queries), 0), np.float32), np.zeros((len(queries), 0), np.int64)
        count, row_filter = min(count, self.stored_rows), self._filter_of_kind(kind)
        if ef is None:
            keys = self.segment.vectors(np.arange(self.stored_rows))
            row_filter = row_filter or RowFilter(start=0, stop=self.stored_rows)
            similarities, places = exact_search(keys, queries, count=count, row_filter=row_filter)
        elif above is None or count <= FIRST_ROWS:
            similarities, places = self.segment.search(
                queries, count=count, ef=ef, row_filter=row_filter
            )
        else:
            similarities, places = self.segment.search(
                queries, count=FIRST_ROWS, ef=min(ef, FIRST_QUEUE), row_filter=row_filter
            )
            more = similarities[:, -1] > above
            similarities, places = pad(similarities, places, count=count)
            if more.any():
                similarities[more], places[more] = self.segment.search(
                    queries[more], count=count, ef=ef, row_filter=row_filter
                )
        return similarities, np.where(places < 0, -1, self.plan.rows[places])

    def is_instance(self, rows: Rows) -> Bools:
        """Return which of `rows` [b] are instance rows."""
        return self.instances[self._places(rows)]

    def votes(self, rows: Rows) -> Votes:
        """Return the columns [n] that `rows` [b] vote for, row after row, and counts [b]."""
        return gather(self.indptr, self.indices, self._places(rows))

    def vote_weights(self, rows: Rows) -> Floats | None:
        """Return the weights [n] of the votes of `rows` [b], None where each weighs 1."""
        if self.weights is None:
            return None
        entries, _ = entries_of(self.indptr, self._places(rows))
        return self.weights[entries]

    def text(self, row: int) -> str:
        """Return the text that was encoded as the row's key."""
        return self.texts[int(self._places(np.array([row]))[0])]

    def texts_of(self, rows: Rows) -> list[str]:
        """Return the texts [b] of `rows` [b]."""
        return [self.texts[place] for place in self._places(rows).tolist()]

    def vectors(self, rows: Rows) -> Halves:
        """Return the keys [b, d] of `rows` [b]."""
        if self.segment is None:
            raise ValueError("a sealed part without rows has no vectors")
        return self.segment.vectors(self._places(rows))

    def alive_rows(self) -> Rows:
        """Return the numbers of all rows without a tombstone, ascending."""
        return self.plan.rows[alive_places(self.alive, self.stored_rows)]

    def with_tombstones(self, rows: Sequence[int]) -> SealedRows:
        """Return the same part in which `rows` are dead as well."""
        places = self._places(np.asarray(rows, np.int64)).tolist()
        alive = set_tombstones(self.alive, places, self.stored_rows)
        return replace(self, alive=alive, dead_rows=count_dead(alive, self.stored_rows))

    def with_alive(self, rows: Rows) -> SealedRows:
        """Return the same part in which no other row than `rows`, in any order, is alive."""
        dead = np.setdiff1d(self.alive_rows(), rows)
        return self.with_tombstones(dead.tolist()) if len(dead) else self

    def _places(self, rows: Rows) -> Rows:
        """Return the positions of `rows` in the arrays and in the segment."""
        return np.searchsorted(self.plan.rows, rows)

    def _filter_of_kind(self, kind: RowKind | None) -> RowFilter | None:
        if kind is None and self.alive is None:
            return None
        alive = self.alive
        if kind is not None:
            of_kind = np.packbits(self.instances == (kind is RowKind.INSTANCE), bitorder="little")
            alive = of_kind if alive is None else of_kind & alive
        return RowFilter(start=0, stop=self.stored_rows, alive=alive)


def seal(
    plan: SegmentPlan, parts: Sequence[Part], segment: Segment | None, *, dimension: int
) -> SealedRows:
    """Gather a plan's rows from the `parts` that hold them now, and return them with their segment.

    Rows that were replaced or deleted since the plan was made are in the segment, with a tombstone.
    No part may reach beyond the plan. Raises `ValueError` if a row of the plan is in none of
    `parts`.
    """
    pieces = [(part, rows) for part, rows in _pieces(plan.rows, parts) if len(rows)]
    if sum(len(piece) for _, piece in pieces) != len(plan.rows):
        raise ValueError("the parts do not hold all rows of the plan")
    votes = [part.votes(rows) for part, rows in pieces]
    counts = np.concatenate([np.zeros(1, np.int64), *(counts for _, counts in votes)])
    indptr = np.cumsum(counts)
    texts = tuple(text for part, rows in pieces for text in part.texts_of(rows))
    weights = joined_weights(
        [
            (part.vote_weights(rows), len(columns))
            for (part, rows), (columns, _) in zip(pieces, votes, strict=True)
        ]
    )
    sealed = SealedRows(
        plan=plan,
        segment=segment,
        instances=_joined([part.is_instance(rows) for part, rows in pieces], np.bool_),
        indptr=indptr,
        indices=_joined([columns for columns, _ in votes], np.int32),
        texts=texts,
        weights=weights,
        stored_bytes=sum(
            bytes_of_row(text, votes=count, dimension=dimension, weighted=weighted)
            for text, count, weighted in zip(
                texts, counts[1:].tolist(), _weighted(weights, indptr), strict=True
            )
        ),
    )
    return sealed.with_alive(_joined([part.alive_rows() for part in parts], np.int64))


def _weighted(weights: Floats | None, indptr: NDArray[np.int64]) -> list[bool]:
    """Which rows [n] have a vote that does not weigh 1."""
    if weights is None:
        return [False] * (len(indptr) - 1)
    others = np.concatenate([np.zeros(1, np.int64), np.cumsum(weights != 1.0)])
    return [bool(weighted) for weighted in others[indptr[1:]] > others[indptr[:-1]]]


def _pieces(rows: Rows, parts: Sequence[Part]) -> Iterator[tuple[Part, Rows]]:
    for part in parts:
        yield part, rows[(rows >= part.first) & (rows < part.stop)]


def _joined(pieces: Sequence[NDArray[_Scalar]], dtype: type[_Scalar]) -> NDArray[_Scalar]:
    return np.concatenate([np.zeros(0, dtype), *pieces])

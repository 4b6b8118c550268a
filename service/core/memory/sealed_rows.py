"""Sealed rows: an extent of live rows in a frozen segment of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from service.core.index.exact import exact_search, pad
from service.core.index.protocol import RowFilter, Segment
from service.core.memory.compaction import Extent
from service.core.memory.part import Part, Votes, dead_places, gather, living_places, without
from service.core.types import Bits, Bools, Floats, Halves, Indices, RowKind, Rows

FIRST_ROWS = 96  # of the first, short walk through a segment, and the length of its queue
FIRST_QUEUE = 128

_Scalar = TypeVar("_Scalar", bound=np.generic)


@dataclass(frozen=True, kw_only=True)
class SealedRows:
    """The rows of an extent; place p of its arrays, and of the segment, holds `extent.rows[p]`.

    `segment` is None where no row is left.
    """

    extent: Extent
    segment: Segment | None
    instances: Bools  # [n]
    indptr: NDArray[np.int64]  # [n + 1], rows of V
    indices: Indices
    texts: tuple[str, ...]
    alive: Bits | None = None
    dead: int = 0

    @property
    def first(self) -> int:
        """See `Part`."""
        return self.extent.first

    @property
    def stop(self) -> int:
        """See `Part`."""
        return self.extent.stop

    @property
    def stored(self) -> int:
        """See `Part`."""
        return len(self.extent.rows)

    def search(
        self,
        queries: Floats,
        *,
        count: int,
        ef: int | None,
        kind: RowKind | None,
        above: Floats | None = None,
    ) -> tuple[Floats, Rows]:
        """See `Part`.

        Of many segments most hold few of the nearest rows: a short walk finds those, and only
        where its last row is still more similar than `above`, a long one follows.
        """
        if self.segment is None:
            return np.zeros((len(queries), 0), np.float32), np.zeros((len(queries), 0), np.int64)
        count, row_filter = min(count, self.stored), self._row_filter(kind)
        if ef is None:
            keys = self.segment.vectors(np.arange(self.stored))
            row_filter = row_filter or RowFilter(start=0, stop=self.stored)
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
        return similarities, np.where(places < 0, -1, self.extent.rows[places])

    def is_instance(self, rows: Rows) -> Bools:
        """See `Part`."""
        return self.instances[self._places(rows)]

    def votes(self, rows: Rows) -> Votes:
        """See `Part`."""
        return gather(self.indptr, self.indices, self._places(rows))

    def text(self, row: int) -> str:
        """See `Part`."""
        return self.texts[int(self._places(np.array([row]))[0])]

    def vectors(self, rows: Rows) -> Halves:
        """See `Part`."""
        if self.segment is None:
            raise ValueError("an empty part holds no vectors")
        return self.segment.vectors(self._places(rows))

    def living(self) -> Rows:
        """See `Part`."""
        return self.extent.rows[living_places(self.alive, self.stored)]

    def bury(self, rows: Sequence[int]) -> SealedRows:
        """See `Part`."""
        places = self._places(np.asarray(rows, np.int64)).tolist()
        alive = without(self.alive, places, self.stored)
        return replace(self, alive=alive, dead=dead_places(alive, self.stored))

    def _places(self, rows: Rows) -> Rows:
        return np.searchsorted(self.extent.rows, rows)

    def _row_filter(self, kind: RowKind | None) -> RowFilter | None:
        if kind is None and self.alive is None:
            return None
        alive = self.alive
        if kind is not None:
            of_kind = np.packbits(self.instances == (kind is RowKind.INSTANCE), bitorder="little")
            alive = of_kind if alive is None else of_kind & alive
        return RowFilter(start=0, stop=self.stored, alive=alive)


def seal(extent: Extent, parts: Sequence[Part], segment: Segment | None) -> SealedRows:
    """The extent's rows, gathered from the parts that hold them now, with their segment.

    Rows that died since the extent was planned are in the segment, and dead. Raises `ValueError`
    when a row of the extent lies in none of `parts`, which may not reach beyond it.
    """
    pieces = list(_pieces(extent.rows, parts))
    if sum(len(piece) for _, piece in pieces) != len(extent.rows):
        raise ValueError("the parts do not hold all rows of the extent")
    votes = [part.votes(rows) for part, rows in pieces if len(rows)]
    counts = np.concatenate([np.zeros(1, np.int64), *(counts for _, counts in votes)])
    sealed = SealedRows(
        extent=extent,
        segment=segment,
        instances=_joined([part.is_instance(rows) for part, rows in pieces], np.bool_),
        indptr=np.cumsum(counts),
        indices=_joined([columns for columns, _ in votes], np.int32),
        texts=tuple(part.text(row) for part, rows in pieces for row in rows.tolist()),
    )
    alive = _joined([part.living() for part in parts], np.int64)
    dead = np.setdiff1d(extent.rows, alive)
    return sealed.bury(dead.tolist()) if len(dead) else sealed


def _pieces(rows: Rows, parts: Sequence[Part]) -> Iterator[tuple[Part, Rows]]:
    for part in parts:
        yield part, rows[(rows >= part.first) & (rows < part.stop)]


def _joined(pieces: Sequence[NDArray[_Scalar]], dtype: type[_Scalar]) -> NDArray[_Scalar]:
    return np.concatenate([np.zeros(0, dtype), *pieces])

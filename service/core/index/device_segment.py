"""Exact search over matrices on a device, with what a device cannot do done on the host.

A device returns the nearest rows of a whole matrix, and not more than its `largest_count`: it knows
neither kinds of rows nor tombstones. So a filter is applied to what it returns:

- Rows of a kind are contiguous in a bundle, so each kind is a matrix of its own. One that the
  filter excludes as a whole is not searched; one that passes as a whole needs no filtering.
- Where a share of a matrix passes, so many more rows are fetched that enough of them should pass;
  and if they do not, once more as many as the device can return.
- What is still missing is scanned on the host. That happens where few rows pass, and only rows that
  pass are scanned.

Each of these is exact. Shapes: B queries, d dimensions, R rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from service.core.index.devices import DeviceMatrix, ScanDevice
from service.core.index.exact import exact_search, nearest, pad
from service.core.index.protocol import RowFilter
from service.core.types import Floats, Halves, Rows

MOST_ROWS = 1_048_576  # of one matrix: faiss copies a growing one several times while it is filled
SPARE_ROWS = 32  # fetched beyond the number that should suffice
_UNCOUNTED_ROWS = 14  # that `RowFilter.selected` may count too many, in the first and last byte


@dataclass(frozen=True, kw_only=True, eq=False)
class Piece:
    """The rows from `start` up to `stop`, as a matrix on the device."""

    start: int
    stop: int
    matrix: DeviceMatrix


def upload_pieces(device: ScanDevice, vectors: Halves, cuts: Sequence[int] = ()) -> list[Piece]:
    """Copy vectors [R, d] to the device, in a matrix of its own between any two `cuts`."""
    rows = len(vectors)
    edges = sorted({0, rows, *cuts, *range(0, rows, MOST_ROWS)})
    return [
        Piece(start=start, stop=stop, matrix=device.upload(vectors[start:stop]))
        for start, stop in pairwise(edges)
    ]


class DeviceSegment:
    """A frozen set of vectors on a device, behind the protocol of a `Segment`."""

    def __init__(self, device: ScanDevice, vectors: Halves, *, cuts: Sequence[int] = ()) -> None:
        """Upload vectors [R, d], which stay readable on the host, too; for `cuts` see above."""
        self._vectors = vectors
        self._search = PiecewiseSearch(device, vectors)
        self._pieces = upload_pieces(device, vectors, cuts)

    @property
    def rows(self) -> int:
        """The number of rows in the segment."""
        return len(self._vectors)

    def search(
        self, queries: Floats, *, count: int, ef: int, row_filter: RowFilter | None
    ) -> tuple[Floats, Rows]:
        """Find the nearest rows exactly, as `Segment.search` says; there is no queue for `ef`."""
        row_filter = row_filter or RowFilter(start=0, stop=self.rows)
        return self._search.search(self._pieces, queries, count=count, row_filter=row_filter)

    def vectors(self, rows: Rows) -> Halves:
        """Return the vectors [n, d] of `rows` [n]."""
        copied: Halves = self._vectors[rows]
        return copied


class PiecewiseSearch:
    """Searches pieces on one device; `vectors` [R, d] are the same rows on the host."""

    def __init__(self, device: ScanDevice, vectors: Halves) -> None:
        """Nothing is uploaded here."""
        self._largest, self._vectors = device.largest_count, vectors

    def search(
        self, pieces: Sequence[Piece], queries: Floats, *, count: int, row_filter: RowFilter
    ) -> tuple[Floats, Rows]:
        """Find the nearest rows as `Segment.search` says."""
        similarities = np.full((len(queries), 0), -np.inf, np.float32)
        rows = np.full((len(queries), 0), -1, np.int64)
        found = list(self._results(pieces, queries, count, row_filter))
        similarities = np.hstack([similarities, *(result for result, _ in found)])
        rows = np.hstack([rows, *(result for _, result in found)])
        if len(found) > 1:
            similarities, rows = nearest(similarities, rows, count=count)
        return pad(similarities, rows, count=count)

    def _results(
        self, pieces: Sequence[Piece], queries: Floats, count: int, row_filter: RowFilter
    ) -> Iterator[tuple[Floats, Rows]]:
        """What each piece that may hold a row contributes, at most `count` rows a query."""
        for piece in pieces:
            start, stop = max(piece.start, row_filter.start), min(piece.stop, row_filter.stop)
            if start < stop:
                inside = replace(row_filter, start=start, stop=stop)
                yield self._search_piece(piece, queries, min(count, stop - start), inside)

    def _search_piece(
        self, piece: Piece, queries: Floats, count: int, row_filter: RowFilter
    ) -> tuple[Floats, Rows]:
        """Find rows that pass, [B, `count`] each, where the filter lies within the piece."""
        size, passing = piece.stop - piece.start, row_filter.selected()
        whole = row_filter.alive is None and passing == size
        if whole and count <= self._largest:
            similarities, places = piece.matrix.search(queries, count=count)
            return similarities, places + piece.start
        similarities = np.full((len(queries), count), -np.inf, np.float32)
        rows = np.full((len(queries), count), -1, np.int64)
        unfilled = np.arange(len(queries))
        for fetched in self._fetches(size, count, passing, exact=row_filter.alive is None):
            some, places = piece.matrix.search(queries[unfilled], count=fetched)
            some, places = _passing_first(some, places + piece.start, row_filter, count=count)
            similarities[unfilled], rows[unfilled] = some, places
            if fetched == size:
                return similarities, rows
            unfilled = unfilled[places[:, -1] < 0]
            if not len(unfilled):
                return similarities, rows
        similarities[unfilled], rows[unfilled] = exact_search(
            self._vectors, queries[unfilled], count=count, row_filter=row_filter
        )
        return similarities, rows

    def _fetches(self, size: int, count: int, passing: int, *, exact: bool) -> list[int]:
        """How many rows to fetch at the first try and at the second; none where a scan is better.

        `passing` of `size` rows pass; unless it is `exact`, a few less may.
        """
        if size <= self._largest and size <= 2 * count + SPARE_ROWS:
            return [size]
        if passing < count + (0 if exact else _UNCOUNTED_ROWS):
            return []
        expected = -(-count * size // passing) + SPARE_ROWS
        if expected >= self._largest:
            return []
        return [min(expected, size), min(self._largest, size)]


def _passing_first(
    similarities: Floats, rows: Rows, row_filter: RowFilter, *, count: int
) -> tuple[Floats, Rows]:
    """Return the first `count` rows of each line that pass the filter; row -1 for missing ones."""
    excluded = ~row_filter.allows(rows)
    order = np.argsort(excluded, axis=1, kind="stable")[:, :count]
    similarities = np.where(excluded, np.float32(-np.inf), similarities)
    rows = np.where(excluded, -1, rows)
    return np.take_along_axis(similarities, order, 1), np.take_along_axis(rows, order, 1)

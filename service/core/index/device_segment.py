"""Exact search over matrices on a device; the host does the filtering that devices cannot do.

A device returns the nearest rows of a whole matrix, at most `largest_count` of them. It knows
neither kinds of rows nor tombstones. So the host applies a filter to what the device returns:

- Each kind of rows is a separate matrix. A matrix that the filter excludes is not searched. One
  that passes entirely needs no filtering.
- If only a part of a matrix passes, more rows are fetched, so that enough of them should pass. If
  too few do, as many as the device can return are fetched in a second try.
- If a query still has too few rows, the host scans all rows that pass.

All of this is exact. Shapes: B queries, d dimensions, R rows.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

import numpy as np

from service.core.errors import DeviceUnavailable
from service.core.index.devices import DeviceMatrix, ScanDevice
from service.core.index.exact import LiveVectors, exact_search
from service.core.index.found_rows import nearest, nothing_found, pad, search_sharing
from service.core.index.protocol import Keys, RowFilter
from service.core.types import Floats, Halves, Rows

MOST_ROWS = 1_048_576  # rows of one matrix: faiss copies a matrix several times while it grows
SPARE_ROWS = 32  # fetched in addition to the number that should suffice
_UNCOUNTED_ROWS = 14  # the most rows beyond the true number that `RowFilter.selected` returns
BLOCK_ROWS = 2_048
log = logging.getLogger("keymatch")


@dataclass(frozen=True, kw_only=True, eq=False)
class Piece:
    """The rows from `start` up to `stop`, as one matrix on the device."""

    start: int
    stop: int
    matrix: DeviceMatrix


class DeviceSegment:
    """A frozen set of vectors on a device; implements `Segment`."""

    def __init__(self, device: ScanDevice, vectors: Keys, *, cuts: Sequence[int] = ()) -> None:
        """Upload vectors [R, d], with a separate matrix for the rows between any two `cuts`.

        The vectors can still be read on the host.
        """
        self._vectors = vectors
        self._search = PiecewiseSearch(device, vectors)
        edges = sorted({0, len(vectors), *cuts, *range(0, len(vectors), MOST_ROWS)})
        self._pieces = [self._search.piece(start, stop) for start, stop in pairwise(edges)]

    @property
    def rows(self) -> int:
        """The number of rows in the segment."""
        return len(self._vectors)

    def search(
        self,
        queries: Floats,
        *,
        count: int,
        ef: int,
        row_filter: RowFilter | None,
        share: int | None = None,
    ) -> tuple[Floats, Rows]:
        """Find the nearest rows exactly, as `Segment.search` describes; `ef` is ignored."""
        search = partial(
            self._search.search,
            self._pieces,
            row_filter=row_filter or RowFilter(start=0, stop=self.rows),
        )
        return search_sharing(search, queries, count=count, most=self.rows, share=share)

    def vectors(self, rows: Rows) -> Halves:
        """Return the vectors [n, d] of `rows` [n]."""
        copied: Halves = self._vectors[rows]
        return copied


class PiecewiseSearch:
    """Uploads and searches pieces on one device. `vectors` [R, d] are the rows on the host."""

    def __init__(self, device: ScanDevice, vectors: Keys) -> None:
        """Upload nothing yet."""
        self._device, self._vectors = device, vectors
        self._largest = device.largest_count

    def piece(self, start: int, stop: int) -> Piece:
        """Upload the rows from `start` up to `stop`; raises what `ScanDevice.upload` raises."""
        matrix = self._device.upload(self._vectors[start:stop])
        return Piece(start=start, stop=stop, matrix=matrix)

    def search(
        self, pieces: Sequence[Piece], queries: Floats, *, count: int, row_filter: RowFilter
    ) -> tuple[Floats, Rows]:
        """Find the nearest rows, as `Segment.search` describes."""
        similarities, rows = nothing_found(len(queries))
        found = list(self._results(pieces, queries, count, row_filter))
        similarities = np.hstack([similarities, *(result for result, _ in found)])
        rows = np.hstack([rows, *(result for _, result in found)])
        if len(found) > 1:
            similarities, rows = nearest(similarities, rows, count=count)
        return pad(similarities, rows, count=count)

    def _results(
        self, pieces: Sequence[Piece], queries: Floats, count: int, row_filter: RowFilter
    ) -> Iterator[tuple[Floats, Rows]]:
        """Yield the results of each piece that may hold a row, at most `count` rows per query."""
        for piece in pieces:
            start, stop = max(piece.start, row_filter.start), min(piece.stop, row_filter.stop)
            if start < stop:
                inside = replace(row_filter, start=start, stop=stop)
                yield self._search_piece(piece, queries, min(count, stop - start), inside)

    def _search_piece(
        self, piece: Piece, queries: Floats, count: int, row_filter: RowFilter
    ) -> tuple[Floats, Rows]:
        """Find the `count` nearest rows that pass a filter within the piece, [B, `count`]."""
        size, passing = piece.stop - piece.start, row_filter.selected()
        whole = row_filter.alive is None and passing == size
        if whole and count <= self._largest:
            similarities, places = piece.matrix.search(queries, count=count)
            return similarities, places + piece.start
        similarities, rows = nothing_found(len(queries), count)
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
        """Return how many of `size` rows to fetch at each try; an empty list if a scan is faster.

        `passing` rows pass the filter, or a few less if the number is not `exact`.
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
    """Return the first `count` rows of each line that pass the filter; missing places hold -1."""
    excluded = ~row_filter.allows(rows)
    order = np.argsort(excluded, axis=1, kind="stable")[:, :count]
    similarities = np.where(excluded, np.float32(-np.inf), similarities)
    rows = np.where(excluded, -1, rows)
    return np.take_along_axis(similarities, order, 1), np.take_along_axis(rows, order, 1)


class DeviceLiveVectors:
    """Live vectors that a device searches. Like `LiveVectors`, it keeps a copy on the host.

    Matrices on a device never change, so an append uploads again. Whole blocks of `BLOCK_ROWS` lie
    in one matrix, uploaded again only when another block is full. The remaining rows lie in a
    second matrix, which every write replaces: less than 1.6 MB at d = 384. A write is in the log by
    then and must not fail. So if the device's memory is full, the host scans the rows.
    """

    def __init__(self, device: ScanDevice, *, capacity: int, dimension: int) -> None:
        """Reserve `capacity` rows of `dimension` on the host."""
        self._host = LiveVectors(capacity=capacity, dimension=dimension)
        self._search = PiecewiseSearch(device, self._host.matrix)
        self._pieces: tuple[Piece, ...] = ()  # replaced as a whole: a search takes old or new

    def write(self, start: int, vectors: Halves) -> None:
        """Write vectors [n, d] to the n rows from `start`; only the writer calls this."""
        self._host.write(start, vectors)
        stop = start + len(vectors)
        unchanged = tuple(piece for piece in self._pieces if piece.stop <= start)
        try:
            self._pieces = self._uploaded(unchanged, stop)
        except DeviceUnavailable as error:
            log.warning("live rows are searched by the processor", extra={"cause": str(error)})
            self._pieces = unchanged

    def read(self, rows: Rows) -> Halves:
        """Return a copy of the vectors [n, d] of `rows` [n]."""
        return self._host.read(rows)

    def search(self, queries: Floats, *, count: int, row_filter: RowFilter) -> tuple[Floats, Rows]:
        """Find the nearest rows of queries [B, d] exactly; returns the same as `Segment.search`."""
        pieces = self._pieces
        covered = pieces[-1].stop if pieces else 0
        found = self._search.search(pieces, queries, count=count, row_filter=row_filter)
        if row_filter.stop <= covered:
            return found
        rest = replace(row_filter, start=max(covered, row_filter.start))
        others = self._host.search(queries, count=count, row_filter=rest)
        rows = np.hstack([found[1], others[1]])
        similarities = np.where(rows < 0, np.float32(-np.inf), np.hstack([found[0], others[0]]))
        return nearest(similarities, rows, count=count)

    def _uploaded(self, unchanged: tuple[Piece, ...], stop: int) -> tuple[Piece, ...]:
        """Return the pieces up to row `stop`. Whole blocks are uploaded only if they changed."""
        whole = stop - stop % BLOCK_ROWS
        pieces = [piece for piece in unchanged if piece.start == 0 and piece.stop == whole]
        if whole and not pieces:
            pieces.append(self._search.piece(0, whole))
        if stop > whole:
            pieces.append(self._search.piece(whole, stop))
        return tuple(pieces)

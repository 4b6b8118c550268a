"""Exact search, for live rows and to measure how many of the nearest keys the graphs miss."""

from __future__ import annotations

import faiss
import numpy as np

from service.core.index.faiss_hnsw import fp16_storage, selector
from service.core.index.found_rows import nearest, nothing_found, pad
from service.core.index.protocol import Keys, RowFilter, batches
from service.core.types import Floats, Halves, Rows

_SCAN_ROWS = 131_072  # rows read at once: 100 MB at d = 384, and 200 MB as fp32
# Fetched in addition: if rows tie for the last place, faiss returns any of them, in any order. The
# first must win, as in graphs: a text may be an instance and a label, whose votes differ.
_SPARE_ROWS = 8
# More queries are compared as a product of matrices, which is faster but rounds sums in another
# order. A scan takes two thirds of its CPU time for 64 queries, and six times as much for 1,000.
_SCANNED_QUERIES = 64


class LiveVectors:
    """A preallocated fp16 matrix that one writer appends to while readers search it.

    A row is written before any view counts it, and a search reads only rows that its view counts.
    So neither side needs a lock. The matrix is the storage of a flat faiss index, whose SIMD scan
    over fp16 is fast. The storage must never move, so the matrix cannot grow.
    """

    def __init__(self, *, capacity: int, dimension: int) -> None:
        """Reserve `capacity` rows of `dimension`."""
        self.capacity = capacity
        self._index, self.matrix = fp16_storage(capacity, dimension)

    def write(self, start: int, vectors: Halves) -> None:
        """Write vectors [n, d] to the n rows from `start`; only the writer calls this."""
        stop = start + len(vectors)
        self.matrix[start:stop] = vectors
        self._index.ntotal = stop

    def copied(self, start: int, stop: int) -> LiveVectors:
        """Return a new storage with the rows `start` to `stop`, and room for as many more."""
        capacity = max(64, 2 * (stop - start))
        larger = LiveVectors(capacity=capacity, dimension=self.matrix.shape[1])
        larger.write(0, self.matrix[start:stop])
        return larger

    def read(self, rows: Rows) -> Halves:
        """Return a copy of the vectors [n, d] of `rows` [n]."""
        copied: Halves = self.matrix[rows]
        return copied

    def search(
        self, queries: Floats, *, count: int, row_filter: RowFilter | None
    ) -> tuple[Floats, Rows]:
        """Find the nearest rows of queries [B, d] exactly; returns the same as `Segment.search`.

        Without a filter, all written rows are searched. Use this only if no more rows are written.
        """
        # Subtle: creating the parameters takes as long as scanning some hundred rows.
        parameters = row_filter and faiss.SearchParameters(sel=selector(row_filter))
        found = self._index.search(queries, count + _SPARE_ROWS, params=parameters)
        return nearest(*found, count=count)


def exact_search(
    keys: Keys, queries: Floats, *, count: int, row_filter: RowFilter
) -> tuple[Floats, Rows]:
    """Scan all keys [R, d] for queries [B, d]; returns the same as `Segment.search`.

    Few queries find the bits of `LiveVectors.search`, so sealing a row changes no exact answer.
    """
    similarities, rows = nothing_found(len(queries))
    candidates = np.arange(row_filter.start, row_filter.stop)[row_filter.mask()]
    for batch in batches(len(candidates), _SCAN_ROWS):
        chunk = candidates[batch]
        vectors = keys[chunk]
        if len(queries) <= _SCANNED_QUERIES:
            scan = LiveVectors(capacity=len(chunk), dimension=vectors.shape[1])
            scan.write(0, vectors)
            most = min(count, len(chunk))
            chunk_similarities, places = scan.search(queries, count=most, row_filter=None)
        else:
            chunk_similarities, places = faiss.knn(
                queries,
                vectors.astype(np.float32),
                min(count + _SPARE_ROWS, len(chunk)),
                metric=faiss.METRIC_INNER_PRODUCT,
            )
        similarities = np.hstack([similarities, chunk_similarities])
        rows = np.hstack([rows, chunk[places]])
        similarities, rows = nearest(similarities, rows, count=count)
    return pad(similarities, rows, count=count)

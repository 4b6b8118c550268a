"""Exact search: over the live rows, and over all keys as the yardstick of the graphs."""

from __future__ import annotations

import faiss
import numpy as np

from service.core.index.faiss_hnsw import selector
from service.core.index.protocol import RowFilter, batches
from service.core.types import Floats, Halves, Rows

_SCAN_ROWS = 131_072  # rows turned to fp32 at once: 200 MB at d = 384


class LiveVectors:
    """A preallocated fp16 matrix that one writer appends to while others search it.

    A row is written before any view counts it, and a search only looks at the rows that its view
    counts, so neither side locks. The memory belongs to a flat faiss index, for its SIMD
    scan over fp16; it never moves, so a full matrix cannot grow.
    """

    def __init__(self, *, capacity: int, dimension: int) -> None:
        """Reserve `capacity` rows of `dimension`."""
        self.capacity = capacity
        self._index = faiss.IndexScalarQuantizer(
            dimension, faiss.ScalarQuantizer.QT_fp16, faiss.METRIC_INNER_PRODUCT
        )
        size = capacity * self._index.sa_code_size()
        self._index.codes.resize(size)
        self._index.is_trained = True
        codes = faiss.rev_swig_ptr(self._index.codes.data(), size)
        self._matrix: Halves = codes.view(np.float16).reshape(capacity, dimension)

    def write(self, start: int, vectors: Halves) -> None:
        """Put vectors [n, d] at rows start to start + n; only the writer calls this."""
        stop = start + len(vectors)
        self._matrix[start:stop] = vectors
        self._index.ntotal = stop

    def read(self, rows: Rows) -> Halves:
        """Copy the vectors [n, d] of `rows`."""
        copied: Halves = self._matrix[rows]
        return copied

    def search(self, queries: Floats, *, count: int, row_filter: RowFilter) -> tuple[Floats, Rows]:
        """See `Segment.search`."""
        parameters = faiss.SearchParameters(sel=selector(row_filter))
        similarities, rows = self._index.search(queries, count, params=parameters)
        return similarities, rows


def exact_search(
    keys: Halves, queries: Floats, *, count: int, row_filter: RowFilter
) -> tuple[Floats, Rows]:
    """Scan all keys [R, d] for queries [B, d]; see `Segment.search` for what comes back."""
    similarities = np.full((len(queries), 0), -np.inf, np.float32)
    rows = np.full((len(queries), 0), -1, np.int64)
    candidates = np.arange(row_filter.start, row_filter.stop)[row_filter.mask()]
    for batch in batches(len(candidates), _SCAN_ROWS):
        chunk = candidates[batch]
        found, places = faiss.knn(
            queries,
            keys[chunk].astype(np.float32),
            min(count, len(chunk)),
            metric=faiss.METRIC_INNER_PRODUCT,
        )
        similarities = np.hstack([similarities, found])
        rows = np.hstack([rows, chunk[places]])
        similarities, rows = nearest(similarities, rows, count=count)
    return pad(similarities, rows, count=count)


def nearest(similarities: Floats, rows: Rows, *, count: int) -> tuple[Floats, Rows]:
    """Keep the `count` best columns of each line, descending; equal similarities by row."""
    order = np.lexsort((rows, -similarities), axis=-1)[:, :count]
    return np.take_along_axis(similarities, order, 1), np.take_along_axis(rows, order, 1)


def pad(similarities: Floats, rows: Rows, *, count: int) -> tuple[Floats, Rows]:
    """Fill up to `count` columns with row -1."""
    missing = count - rows.shape[1]
    if missing <= 0:
        return similarities, rows
    return (
        np.pad(similarities, ((0, 0), (0, missing)), constant_values=-np.inf),
        np.pad(rows, ((0, 0), (0, missing)), constant_values=-1),
    )

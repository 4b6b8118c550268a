"""HNSW of hnswlib over fp32 vectors, to compare with the library that the paper used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from service.core.errors import BundleAltered, MissingExtra
from service.core.index.libraries import IndexParameters
from service.core.index.protocol import Progress, RowFilter, Segment, batches
from service.core.types import Floats, Halves, Rows

try:
    import hnswlib
except ImportError as error:
    raise MissingExtra("hnswlib", extra="hnswlib") from error

_ADD_ROWS = 8192


class HnswlibSegment:
    """A frozen hnswlib index, whose queue length is set for the index and not for one search."""

    def __init__(self, index: Any) -> None:
        """Wrap a loaded `hnswlib.Index`."""
        self._index = index
        self._ef = 0

    @property
    def rows(self) -> int:
        """The number of rows in the segment."""
        return int(self._index.element_count)

    def search(
        self, queries: Floats, *, count: int, ef: int, row_filter: RowFilter | None
    ) -> tuple[Floats, Rows]:
        """Find the nearest rows as `Segment.search` says.

        A filter is slow: hnswlib calls it for every row that it visits.
        """
        queue = max(ef, count)
        if queue > self._ef:  # never lowered, as that would shorten a concurrent search's queue
            self._ef = queue
            self._index.set_ef(queue)
        mask = None if row_filter is None else row_filter.mask()
        filled = min(count, self.rows if mask is None else int(mask.sum()))
        similarities = np.full((len(queries), count), -np.inf, np.float32)
        rows = np.full((len(queries), count), -1, np.int64)
        if filled:
            labels, distances = self._index.knn_query(
                queries, k=filled, num_threads=1, filter=_allows(row_filter, mask)
            )
            rows[:, :filled] = labels.astype(np.int64)
            similarities[:, :filled] = 1.0 - distances  # the "ip" space returns 1 - s
        return similarities, rows

    def vectors(self, rows: Rows) -> Halves:
        """Return the vectors [n, d] of `rows` [n]."""
        return np.asarray(self._index.get_items(rows, return_type="numpy"), np.float16)


def _allows(row_filter: RowFilter | None, mask: Any) -> Any:
    if row_filter is None:
        return None
    start, stop = row_filter.start, row_filter.stop
    return lambda row: start <= row < stop and bool(mask[row - start])


def build(vectors: Halves, parameters: IndexParameters, path: Path, progress: Progress) -> None:
    """Build the graph over vectors [R, d] on all cores and write it to `path`."""
    rows, dimension = vectors.shape
    index = hnswlib.Index(space="ip", dim=dimension)
    index.init_index(
        max_elements=max(rows, 1), ef_construction=parameters.ef_construction, M=parameters.m
    )
    for batch in batches(rows, _ADD_ROWS):
        index.add_items(vectors[batch].astype(np.float32), np.arange(batch.start, batch.stop))
        progress(batch.stop)
    index.save_index(str(path))


def open(path: Path, *, rows: int, dimension: int) -> Segment:
    """Open a written graph; hnswlib reads the whole file into memory.

    Raises `BundleAltered` if the file is damaged or does not match `rows` and `dimension`.
    """
    index = hnswlib.Index(space="ip", dim=dimension)
    try:
        index.load_index(str(path))
    except RuntimeError as error:
        raise BundleAltered(f"{path.name} is not an index that hnswlib can read") from error
    stored = _stored_dimension(path)
    if (index.element_count, stored) != (rows, dimension):
        raise BundleAltered(
            f"{path.name} holds {index.element_count} rows of {stored} dimensions;"
            f" the manifest says {rows} of {dimension}"
        )
    return HnswlibSegment(index)


def _stored_dimension(path: Path) -> int:
    """Return the dimension in the file's header.

    hnswlib does not check it, and with a wrong one it would read out of bounds.
    """
    _, _, _, _, label_offset, data_offset = np.fromfile(path, np.uintp, 6).tolist()
    return int(label_offset - data_offset) // np.dtype(np.float32).itemsize

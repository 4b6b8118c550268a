"""HNSW by faiss over fp16 vectors: half the memory of fp32 at equal recall, memory-mapped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from service.core.errors import BundleAltered, MissingExtra
from service.core.index.libraries import IndexParameters
from service.core.index.protocol import Progress, RowFilter, Segment, batches
from service.core.types import Floats, Halves, Rows

try:
    import faiss
except ImportError as error:  # pragma: no cover - needs an environment without faiss
    raise MissingExtra("faiss", extra="cpu") from error

_ADD_ROWS = 8192  # a batch of insertions between two progress reports
_SCANNED_FOR_ONE = 60  # rows of 384 that are scanned in the time of one more place in the queue
_LONGEST_QUEUE = 4096
_SPARE = 32  # rows found beyond those asked for, in the place of a few excluded ones
_FEW = 0.05  # excluded share up to which a walk that ignores the filter is quicker


class FaissSegment:
    """A frozen faiss HNSW index, searched in the calling thread."""

    def __init__(self, index: Any) -> None:
        """Wrap an open `IndexHNSWSQ`."""
        self._index = index
        self._vectors = faiss.downcast_index(index.storage)

    @property
    def rows(self) -> int:
        """How many rows the segment holds."""
        return int(self._index.ntotal)

    def search(
        self, queries: Floats, *, count: int, ef: int, row_filter: RowFilter | None
    ) -> tuple[Floats, Rows]:
        """See `Segment.search`; the queue is at least `count` long.

        Subtle: faiss ends a walk after `ef` candidates whether or not the filter lets them pass,
        so a filter that leaves few rows, or rows far from the query, would lose most of them. A
        walk that asks about each row is also slower by half. So where few rows are excluded, some
        more are found and those dropped; the queue grows as the filter narrows; where few rows are
        left they are scanned; and what the walk could not fill is scanned after all.
        """
        if row_filter is None:
            return self._walk(queries, count=count, ef=ef, row_filter=None)
        selected = max(1, row_filter.selected())
        wider = min(ef * self.rows // selected, _LONGEST_QUEUE)
        if selected <= _SCANNED_FOR_ONE * max(wider, count):
            return self._scan(queries, count=count, row_filter=row_filter)
        if selected >= (1 - _FEW) * self.rows:
            similarities, rows = self._walk_and_drop(
                queries, count=count, ef=ef, row_filter=row_filter
            )
        else:
            similarities, rows = self._walk(queries, count=count, ef=wider, row_filter=row_filter)
        short = (rows < 0).any(axis=1)
        if short.any():
            similarities[short], rows[short] = self._scan(
                queries[short], count=count, row_filter=row_filter
            )
        return similarities, rows

    def vectors(self, rows: Rows) -> Halves:
        """See `Segment.vectors`; faiss decodes fp16 to fp32 without loss."""
        return np.asarray(self._vectors.reconstruct_batch(rows), np.float16)

    def _walk(
        self, queries: Floats, *, count: int, ef: int, row_filter: RowFilter | None
    ) -> tuple[Floats, Rows]:
        parameters = faiss.SearchParametersHNSW(
            efSearch=max(ef, count), sel=None if row_filter is None else selector(row_filter)
        )
        similarities, rows = self._index.search(queries, count, params=parameters)
        return similarities, rows

    def _walk_and_drop(
        self, queries: Floats, *, count: int, ef: int, row_filter: RowFilter
    ) -> tuple[Floats, Rows]:
        """Walk as if all rows passed, and leave out those that do not."""
        similarities, rows = self._walk(
            queries, count=count + _SPARE, ef=ef + _SPARE, row_filter=None
        )
        out = ~row_filter.allows(rows)
        order = np.argsort(out, axis=1, kind="stable")[:, :count]
        rows = np.where(out, -1, rows)
        return np.take_along_axis(similarities, order, 1), np.take_along_axis(rows, order, 1)

    def _scan(self, queries: Floats, *, count: int, row_filter: RowFilter) -> tuple[Floats, Rows]:
        """Every selected row, in the graph's own memory-mapped vectors."""
        parameters = faiss.SearchParameters(sel=selector(row_filter))
        similarities, rows = self._vectors.search(queries, count, params=parameters)
        return similarities, rows


def selector(row_filter: RowFilter) -> Any:
    """Translate a row filter into faiss's terms; a search skips what it does not select."""
    in_range = faiss.IDSelectorRange(row_filter.start, row_filter.stop)
    if row_filter.alive is None:
        return in_range
    return faiss.IDSelectorAnd(in_range, faiss.IDSelectorBitmap(row_filter.alive))


def search_in_one_thread() -> None:
    """Make faiss use one OpenMP thread for calls of this thread (the setting is per thread)."""
    faiss.omp_set_num_threads(1)


def build(vectors: Halves, parameters: IndexParameters, path: Path, progress: Progress) -> None:
    """See `SegmentLibrary.build`."""
    rows, dimension = vectors.shape
    index = faiss.IndexHNSWSQ(
        dimension,
        faiss.ScalarQuantizer.QT_fp16,
        parameters.m,
        faiss.METRIC_INNER_PRODUCT,
    )
    index.hnsw.efConstruction = parameters.ef_construction
    index.hnsw.efSearch = parameters.ef
    for batch in batches(rows, _ADD_ROWS):
        index.add(vectors[batch].astype(np.float32))
        progress(batch.stop)
    faiss.write_index(index, str(path))


def open(path: Path, *, rows: int, dimension: int) -> Segment:
    """See `SegmentLibrary.open`; vectors and edges stay in the page cache, shared by processes."""
    try:
        index = faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC)
    except RuntimeError as error:  # faiss's only exception, whatever the file lacks
        raise BundleAltered(f"{path.name} is not an index that faiss can read") from error
    if not isinstance(index, faiss.IndexHNSWSQ):
        raise BundleAltered(f"{path.name} holds a {type(index).__name__}, expected IndexHNSWSQ")
    if (index.ntotal, index.d) != (rows, dimension):
        raise BundleAltered(
            f"{path.name} holds {index.ntotal} rows of {index.d} dimensions;"
            f" the manifest says {rows} of {dimension}"
        )
    return FaissSegment(index)

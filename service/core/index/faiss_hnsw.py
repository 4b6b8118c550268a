"""HNSW of faiss over fp16 vectors, memory-mapped: half the memory of fp32 at equal recall.

The file holds an `IndexIDMap` over an `IndexHNSWSQ`: vectors and graph are stored in the order of
`cluster_order`, and the map has the row at each place. In a file without the map, as earlier
versions wrote it, row and place are the same.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from service.core.errors import BundleAltered, MissingExtra
from service.core.index.libraries import IndexParameters
from service.core.index.protocol import Progress, RowFilter, Segment, batches
from service.core.index.row_order import cluster_order
from service.core.types import Floats, Halves, Rows

try:
    import faiss
except ImportError as error:  # pragma: no cover - needs an environment without faiss
    raise MissingExtra("faiss", extra="cpu") from error

_ADD_ROWS = 8192  # rows inserted between two progress reports
SCAN_ROWS_PER_QUEUE_PLACE = 60  # rows (d = 384) scanned in the time of one more place in the queue
_LONGEST_QUEUE = 4096
_SPARE_ROWS = 32  # extra rows that an unfiltered walk finds to make up for excluded ones
_FEW_EXCLUDED = 0.05  # excluded share up to which an unfiltered walk is faster


class FaissSegment:
    """A frozen faiss HNSW index, searched in the calling thread."""

    def __init__(self, index: Any) -> None:
        """Wrap an open `IndexHNSWSQ`, or an `IndexIDMap` over one."""
        self._index = index
        self._vectors = faiss.downcast_index(_graph(index).storage)
        self._unfiltered: dict[int, Any] = {}  # search parameters by length of the queue

    @property
    def rows(self) -> int:
        """The number of rows in the segment."""
        return int(self._index.ntotal)

    def search(
        self, queries: Floats, *, count: int, ef: int, row_filter: RowFilter | None
    ) -> tuple[Floats, Rows]:
        """Find the nearest rows as `Segment.search` says; the queue is at least `count` long.

        Subtle: faiss ends a walk through the graph after `ef` candidates, whether or not they pass
        the filter. A filter that passes few rows, or only rows far from the query, would therefore
        lose most of them; a filtered walk also takes half as long again. So:

        - few rows excluded: walk without the filter for some spare rows, then drop the excluded;
        - more rows excluded: walk with the filter and a longer queue;
        - few rows left: scan them all;
        - places that a walk could not fill: scan after all.
        """
        if row_filter is None:
            return self._walk(queries, count=count, ef=ef, row_filter=None)
        selected = max(1, row_filter.selected())
        longer_ef = min(ef * self.rows // selected, _LONGEST_QUEUE)
        if selected <= SCAN_ROWS_PER_QUEUE_PLACE * max(longer_ef, count):
            return self._scan(queries, count=count, row_filter=row_filter)
        if selected >= (1 - _FEW_EXCLUDED) * self.rows:
            similarities, rows = self._walk_and_drop(
                queries, count=count, ef=ef, row_filter=row_filter
            )
        else:
            similarities, rows = self._walk(
                queries, count=count, ef=longer_ef, row_filter=row_filter
            )
        unfilled = (rows < 0).any(axis=1)
        if unfilled.any():
            similarities[unfilled], rows[unfilled] = self._scan(
                queries[unfilled], count=count, row_filter=row_filter
            )
        return similarities, rows

    def vectors(self, rows: Rows) -> Halves:
        """Return the vectors [n, d] of `rows` [n]; faiss decodes fp16 to fp32 without loss."""
        places = self._place_of_row[rows]
        return np.asarray(self._vectors.reconstruct_batch(places), np.float16)

    @cached_property
    def _row_at(self) -> Rows | None:
        """The row at each place [R], None where row and place are the same."""
        if not isinstance(self._index, faiss.IndexIDMap):
            return None
        row_at: Rows = faiss.vector_to_array(self._index.id_map)
        return row_at

    @cached_property
    def _place_of_row(self) -> Rows:
        return np.arange(self.rows) if self._row_at is None else np.argsort(self._row_at)

    def _walk(
        self, queries: Floats, *, count: int, ef: int, row_filter: RowFilter | None
    ) -> tuple[Floats, Rows]:
        queue = max(ef, count)
        if row_filter is None:
            parameters = self._unfiltered.get(queue)
            if parameters is None:  # to make them takes as long as to compare a hundred vectors
                parameters = self._unfiltered[queue] = faiss.SearchParametersHNSW(efSearch=queue)
        else:
            parameters = faiss.SearchParametersHNSW(efSearch=queue, sel=selector(row_filter))
        similarities, rows = self._index.search(queries, count, params=parameters)
        return similarities, rows

    def _walk_and_drop(
        self, queries: Floats, *, count: int, ef: int, row_filter: RowFilter
    ) -> tuple[Floats, Rows]:
        """Walk without the filter, then drop the rows that it excludes."""
        similarities, rows = self._walk(
            queries, count=count + _SPARE_ROWS, ef=ef + _SPARE_ROWS, row_filter=None
        )
        excluded = ~row_filter.allows(rows)
        order = np.argsort(excluded, axis=1, kind="stable")[:, :count]
        rows = np.where(excluded, -1, rows)
        return np.take_along_axis(similarities, order, 1), np.take_along_axis(rows, order, 1)

    def _scan(self, queries: Floats, *, count: int, row_filter: RowFilter) -> tuple[Floats, Rows]:
        """Scan every row that passes the filter, in the segment's memory-mapped vectors."""
        selected = selector(row_filter)
        if self._row_at is None:
            parameters = faiss.SearchParameters(sel=selected)
            similarities, rows = self._vectors.search(queries, count, params=parameters)
            return similarities, rows
        selected_places = faiss.IDSelectorTranslated(self._index.id_map, selected)
        parameters = faiss.SearchParameters(sel=selected_places)
        similarities, places = self._vectors.search(queries, count, params=parameters)
        return similarities, np.where(places < 0, places, self._row_at[places])


def selector(row_filter: RowFilter) -> Any:
    """Return a row filter as faiss's selector; a search returns only rows that it selects."""
    in_range = faiss.IDSelectorRange(row_filter.start, row_filter.stop)
    if row_filter.alive is None:
        return in_range
    return faiss.IDSelectorAnd(in_range, faiss.IDSelectorBitmap(row_filter.alive))


def search_in_one_thread() -> None:
    """Make faiss search without further threads; call it in each thread that searches."""
    faiss.omp_set_num_threads(1)


def build(vectors: Halves, parameters: IndexParameters, path: Path, progress: Progress) -> None:
    """Build the graph over vectors [R, d] on all cores and write it to `path`."""
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
    # Sorted only now: inserted in this order, rows would be linked less well.
    row_at = cluster_order(vectors)
    index.permute_entries(row_at)
    faiss.write_index(_numbered(index, row_at), str(path))


def open(path: Path, *, rows: int, dimension: int) -> Segment:
    """Open a written graph memory-mapped, so that processes share it through the page cache.

    Raises `BundleAltered` if the file is damaged or does not match `rows` and `dimension`.
    """
    try:
        index = faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC)
    except RuntimeError as error:  # faiss raises no other exception, whatever is wrong
        raise BundleAltered(f"{path.name} is not an index that faiss can read") from error
    graph = _graph(index)
    if not isinstance(graph, faiss.IndexHNSWSQ):
        raise BundleAltered(f"{path.name} holds a {type(graph).__name__}, expected IndexHNSWSQ")
    if (index.ntotal, index.d) != (rows, dimension):
        raise BundleAltered(
            f"{path.name} holds {index.ntotal} rows of {index.d} dimensions;"
            f" the manifest says {rows} of {dimension}"
        )
    if graph is not index and not _ends_with_its_map(index, path):
        raise BundleAltered(f"{path.name} is cut off")
    return FaissSegment(index)


def _graph(index: Any) -> Any:
    """The index below a map of rows, or `index` itself if it has none."""
    return faiss.downcast_index(index.index) if isinstance(index, faiss.IndexIDMap) else index


def _ends_with_its_map(index: Any, path: Path) -> bool:
    """Whether the file's last number is the map's; faiss misses a last number that is cut off."""
    row_at = faiss.vector_to_array(index.id_map)
    size = path.stat().st_size
    if not len(row_at):
        return True
    return bool(np.fromfile(path, np.int64, offset=size - row_at.itemsize)[0] == row_at[-1])


def _numbered(index: Any, row_at: Rows) -> Any:
    """Give the places of a filled index the row numbers `row_at` [R]."""
    numbered = faiss.IndexIDMap(faiss.IndexFlatIP(index.d))  # it takes only an empty index
    numbered.index, numbered.ntotal, numbered.own_fields = index, index.ntotal, False
    faiss.copy_array_to_vector(row_at, numbered.id_map)
    return numbered

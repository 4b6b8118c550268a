"""HNSW of hnswlib over fp32 vectors, for comparison: the paper used this library."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from service.core.errors import BundleAltered, MissingExtra
from service.core.index.exact import exact_search
from service.core.index.found_rows import nothing_found
from service.core.index.libraries import IndexParameters
from service.core.index.protocol import Graph, Progress, RowFilter, batches
from service.core.types import Floats, Halves, Rows

try:
    import hnswlib
except ImportError as error:
    raise MissingExtra("hnswlib", extra="hnswlib") from error

_ADD_ROWS = 8192


class HnswlibGraph:
    """A frozen hnswlib index. Its queue length belongs to the index, not to a single search."""

    def __init__(self, index: Any) -> None:
        """Wrap a loaded `hnswlib.Index`."""
        self._index = index
        self._queue = 0

    def walk(self, queries: Floats, *, count: int, queue: int) -> tuple[Floats, Rows]:
        """Find about the `count` nearest nodes, as `Graph.walk` describes."""
        if queue > self._queue:  # never lowered: that would shorten concurrent searches' queue
            self._queue = queue
            self._index.set_ef(queue)
        filled = min(count, int(self._index.element_count))
        similarities, nodes = nothing_found(len(queries), count)
        if filled:
            labels, distances = self._index.knn_query(queries, k=filled, num_threads=1)
            nodes[:, :filled] = labels.astype(np.int64)
            similarities[:, :filled] = 1.0 - distances  # the "ip" space returns 1 - s
        return similarities, nodes

    def subset(self, nodes: Rows, *, copied: bool) -> CopiedNodes:
        """Return a copy of `nodes` [n] to be scanned, as `Graph.subset` describes."""
        return CopiedNodes(nodes, self.vectors(nodes))

    def vectors(self, nodes: Rows) -> Halves:
        """Return the vectors [n, d] of `nodes` [n]."""
        return np.asarray(self._index.get_items(nodes, return_type="numpy"), np.float16)


class CopiedNodes:
    """Nodes with a copy of their vectors."""

    is_copy = True

    def __init__(self, nodes: Rows, vectors: Halves) -> None:
        """Scan vectors [n, d]."""
        self.nodes, self._vectors = nodes, vectors

    def search(self, queries: Floats, *, count: int) -> tuple[Floats, Rows]:
        """Find the `count` nearest nodes exactly, as `Subset.search` describes."""
        every = RowFilter(start=0, stop=len(self.nodes))
        similarities, places = exact_search(self._vectors, queries, count=count, row_filter=every)
        return similarities, np.where(places < 0, places, self.nodes[places])


def builder() -> str:
    """Name hnswlib's version. It does not say for which processor hnswlib was compiled."""
    return f"hnswlib {version('hnswlib')}"


def build(
    vectors: Halves, nodes: Rows, parameters: IndexParameters, path: Path, progress: Progress
) -> None:
    """Build the graph over distinct vectors [R, d] and write it to `path`.

    With several threads, hnswlib would build another graph each time.
    """
    rows, dimension = vectors.shape
    index = hnswlib.Index(space="ip", dim=dimension)
    index.init_index(
        max_elements=max(rows, 1), ef_construction=parameters.ef_construction, M=parameters.m
    )
    for batch in batches(rows, _ADD_ROWS):
        index.add_items(vectors[batch].astype(np.float32), nodes[batch], num_threads=1)
        progress(batch.stop)
    index.save_index(str(path))


def open(path: Path, *, nodes: Rows, dimension: int) -> Graph:
    """Open a written graph; hnswlib reads the whole file into memory.

    Raises `BundleAltered` if the file is damaged or does not match `nodes` and `dimension`.
    """
    index = hnswlib.Index(space="ip", dim=dimension)
    try:
        index.load_index(str(path))
    except RuntimeError as error:
        raise BundleAltered(f"{path.name} is not an index that hnswlib can read") from error
    stored = _stored_dimension(path)
    if (index.element_count, stored) != (len(nodes), dimension):
        raise BundleAltered(
            f"{path.name} holds {index.element_count} distinct keys of {stored} dimensions;"
            f" expected are {len(nodes)} of {dimension}"
        )
    return HnswlibGraph(index)


def _stored_dimension(path: Path) -> int:
    """Return the dimension in the file's header.

    hnswlib does not check it. With a wrong dimension it would read out of bounds.
    """
    _, _, _, _, label_offset, data_offset = np.fromfile(path, np.uintp, 6).tolist()
    return int(label_offset - data_offset) // np.dtype(np.float32).itemsize

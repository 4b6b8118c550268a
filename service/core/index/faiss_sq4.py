"""HNSW of faiss over 4-bit codes, refined over fp16 vectors: less memory at equal recall.

The graph is that of `faiss_hnsw`. A walk reads a quarter of the bytes per key: codes of 4 bits per
dimension (`ScalarQuantizer`). The similarities of all rows in its queue are then computed from the
fp16 vectors, with the bits that any other search gives them. So only keys near some query are read
in fp16, and the rest of the fp16 vectors need not stay in memory.

The file holds an `IndexIDMap` over an `IndexRefine` over an `IndexHNSWSQ` and the fp16 vectors.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import faiss
import numpy as np

from service.core.errors import BundleAltered
from service.core.index.faiss_hnsw import (
    FaissGraph,
    builder,
    built_graph,
    numbered,
    read,
    same_instructions,
)
from service.core.index.libraries import IndexParameters
from service.core.index.protocol import Graph, Progress, batches
from service.core.types import Floats, Halves, Rows

__all__ = ["build", "builder", "open"]

_RANGE_ROWS = 65_536  # rows from which each dimension's range is taken
_ADD_ROWS = 8192


class RefinedGraph(FaissGraph):
    """A graph that is walked by codes; similarities are those of the fp16 vectors."""

    def walk(self, queries: Floats, *, count: int, queue: int) -> tuple[Floats, Rows]:
        """Find about the `count` nearest nodes, as `Graph.walk` describes.

        All nodes that are left in the queue are compared again, by their fp16 vectors.
        """
        similarities, nodes = super().walk(queries, count=max(count, queue), queue=queue)
        return similarities[:, :count], nodes[:, :count]

    def _with_queue(self, queue: int) -> Any:
        walk = super()._with_queue(queue)
        return faiss.IndexRefineSearchParameters(k_factor=1, base_index_params=walk)


def build(
    vectors: Halves, nodes: Rows, parameters: IndexParameters, path: Path, progress: Progress
) -> None:
    """Build the graph over distinct vectors [R, d] on all cores and write it to `path`."""
    with same_instructions():
        graph, row_at = built_graph(vectors, parameters, progress)
        exact = faiss.downcast_index(graph.storage)
        exact.thisown = True
        graph.storage = _codes(vectors, row_at)  # from now on, the graph owns them
        refined = faiss.IndexRefine(graph, exact)
        faiss.write_index(numbered(refined, nodes[row_at]), str(path))


def _codes(vectors: Halves, row_at: Rows) -> Any:
    """Return an index of 4-bit codes of vectors [R, d], in the order `row_at` [R]."""
    rows, dimension = vectors.shape
    codes = faiss.IndexScalarQuantizer(
        dimension, faiss.ScalarQuantizer.QT_4bit, faiss.METRIC_INNER_PRODUCT
    )
    sample = vectors[:: rows // _RANGE_ROWS + 1].astype(np.float32)
    codes.train(sample if rows else np.zeros((1, dimension), np.float32))
    for batch in batches(rows, _ADD_ROWS):
        codes.add(vectors[row_at[batch]].astype(np.float32))
    return codes


def open(path: Path, *, nodes: Rows, dimension: int) -> Graph:
    """Open a written graph memory-mapped. Processes share it through the page cache.

    Raises `BundleAltered` if the file is damaged or does not match `nodes` and `dimension`.
    """
    index = read(path, faiss.IndexRefine, nodes=nodes, dimension=dimension)
    refined = faiss.downcast_index(index.index)
    graph, exact = map(faiss.downcast_index, (refined.base_index, refined.refine_index))
    kinds = (faiss.IndexHNSWSQ, faiss.IndexScalarQuantizer)
    if not (isinstance(graph, kinds[0]) and isinstance(exact, kinds[1])):
        raise BundleAltered(
            f"{path.name} refines a {type(graph).__name__} by a {type(exact).__name__}, expected"
            " IndexHNSWSQ and IndexScalarQuantizer"
        )
    return RefinedGraph(index, exact)

"""HNSW of faiss over fp16 vectors, memory-mapped: half the memory of fp32 at equal recall.

The file holds an `IndexIDMap` over an `IndexHNSWSQ`. Vectors and graph are stored in the order of
`cluster_order`, and the map gives the node at each place. Rows that are searched together thus lie
on few pages of memory, and a search takes a fifth less time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from service.core.errors import BundleAltered, MissingExtra
from service.core.index.libraries import IndexParameters
from service.core.index.protocol import Graph, Progress, RowFilter, batches
from service.core.types import Floats, Halves, Indices, Rows

try:
    import faiss
except ImportError as error:  # pragma: no cover - needs an environment without faiss
    raise MissingExtra("faiss", extra="cpu") from error

_ADD_ROWS = 8192  # rows inserted between two progress reports
_FEW = 16  # if at most 1 / _FEW of the nodes are scanned, their vectors are copied
_ROWS_PER_CLUSTER = 500
_MOST_CLUSTERS = 1024
_TRAINING_ROWS_PER_CLUSTER = 80
_ITERATIONS = 6
_ASSIGNED_ROWS = 8192  # rows compared with all centers at once


class FaissGraph:
    """A frozen faiss HNSW index, searched in the calling thread."""

    def __init__(self, index: Any, vectors: Any) -> None:
        """Wrap an open `IndexIDMap`, and the fp16 index of its vectors."""
        self._index, self._vectors = index, vectors
        self._parameters: dict[int, Any] = {}  # search parameters by queue length

    def walk(self, queries: Floats, *, count: int, queue: int) -> tuple[Floats, Rows]:
        """Find about the `count` nearest nodes, as `Graph.walk` describes."""
        parameters = self._parameters.get(queue)
        if parameters is None:  # creating them takes as long as comparing a hundred vectors
            parameters = self._parameters[queue] = self._with_queue(queue)
        similarities, nodes = self._index.search(queries, count, params=parameters)
        return similarities, nodes

    def subset(self, nodes: Rows, *, copied: bool) -> FaissSubset:
        """Return `nodes` [n] to be scanned, as `Graph.subset` describes.

        A scan of the memory-mapped vectors must test every vector.
        """
        places = self._place_of_node[nodes]
        if copied or _FEW * len(nodes) <= self._index.ntotal:
            return FaissSubset(nodes, scanned(self._matrix, places), nodes)
        selected = np.zeros(self._index.ntotal, bool)
        selected[places] = True
        bitmap = faiss.IDSelectorBitmap(np.packbits(selected, bitorder="little"))
        return FaissSubset(nodes, self._vectors, self._node_at, selector=bitmap)

    def vectors(self, nodes: Rows) -> Halves:
        """Return the vectors [n, d] of `nodes` [n]."""
        copied: Halves = self._matrix[self._place_of_node[nodes]]
        return copied

    def _with_queue(self, queue: int) -> Any:
        """Return the parameters of a search with a queue of this length."""
        return faiss.SearchParametersHNSW(efSearch=queue)

    @cached_property
    def _matrix(self) -> Halves:
        """The memory-mapped vectors [R, d], in the order in which they are stored."""
        codes = self._vectors.codes
        bits = faiss.rev_swig_ptr(codes.data(), codes.size())
        matrix: Halves = bits.view(np.float16).reshape(self._index.ntotal, self._index.d)
        return matrix

    @cached_property
    def _node_at(self) -> Rows:
        """The node at each place [R]."""
        node_at: Rows = faiss.vector_to_array(self._index.id_map)
        return node_at

    @cached_property
    def _place_of_node(self) -> Indices:
        """The place of each node by its row number; takes 4 bytes per row of the segment."""
        node_at = faiss.vector_to_array(self._index.id_map)  # not kept: 8 bytes per row
        place_of_node = np.full(int(node_at.max(initial=-1)) + 1, -1, np.int32)
        place_of_node[node_at] = np.arange(len(node_at), dtype=np.int32)
        return place_of_node


class FaissSubset:
    """Nodes whose vectors an index scans: all of the index's, or those that a selector allows."""

    def __init__(self, nodes: Rows, index: Any, node_at: Rows, *, selector: Any = None) -> None:
        """Scan `index`; `node_at` are the nodes at its places."""
        self.nodes, self._index, self._node_at = nodes, index, node_at
        self.is_copy = selector is None
        self._parameters = selector and faiss.SearchParameters(sel=selector)

    def search(self, queries: Floats, *, count: int) -> tuple[Floats, Rows]:
        """Find the `count` nearest nodes exactly, as `Subset.search` describes."""
        similarities, found = self._index.search(queries, count, params=self._parameters)
        return similarities, np.where(found < 0, found, self._node_at[found])


def fp16_storage(rows: int, dimension: int) -> tuple[Any, Halves]:
    """Return an empty faiss index that scans fp16 vectors, and its storage [rows, d] to fill.

    The index scans the first `ntotal` rows.
    """
    index = faiss.IndexScalarQuantizer(
        dimension, faiss.ScalarQuantizer.QT_fp16, faiss.METRIC_INNER_PRODUCT
    )
    index.is_trained = True
    size = rows * index.sa_code_size()
    index.codes.resize(size)
    codes = faiss.rev_swig_ptr(index.codes.data(), size) if size else np.zeros(0, np.uint8)
    return index, codes.view(np.float16).reshape(rows, dimension)


def scanned(vectors: Halves, places: Rows | Indices) -> Any:
    """Return a faiss index that scans a copy of the vectors at some `places` among [n, d]."""
    index, matrix = fp16_storage(len(places), vectors.shape[1])
    # Not np.take: it would first copy all vectors, because a file does not align them.
    matrix[:] = vectors[places]
    index.ntotal = len(places)
    return index


def selector(row_filter: RowFilter) -> Any:
    """Return a row filter as faiss's selector: a search returns only the rows that it selects."""
    in_range = faiss.IDSelectorRange(row_filter.start, row_filter.stop)
    if row_filter.alive is None:
        return in_range
    return faiss.IDSelectorAnd(in_range, faiss.IDSelectorBitmap(row_filter.alive))


def search_in_one_thread() -> None:
    """Make faiss search without additional threads. Call this in each thread that searches."""
    faiss.omp_set_num_threads(1)


def builder() -> str:
    """Name faiss's version and the instructions that `build` uses."""
    config = faiss.SIMDConfig
    level = "AVX2" if config.is_simd_level_available(faiss.SIMDLevel_AVX2) else None
    return f"faiss {faiss.__version__} {level or config.get_level_name()}"


@contextmanager
def same_instructions() -> Iterator[None]:
    """Compute with AVX2 even if the processor has AVX-512.

    The two round sums differently, and one other edge makes another graph. Replicas on different
    processors must build the same.
    """
    config = faiss.SIMDConfig
    found = config.get_level()
    if config.is_simd_level_available(faiss.SIMDLevel_AVX2):
        config.set_level(faiss.SIMDLevel_AVX2)
    try:
        yield
    finally:
        config.set_level(found)


def build(
    vectors: Halves, nodes: Rows, parameters: IndexParameters, path: Path, progress: Progress
) -> None:
    """Build the graph over distinct vectors [R, d] on all cores and write it to `path`."""
    with same_instructions():
        index, row_at = built_graph(vectors, parameters, progress)
        faiss.write_index(numbered(index, nodes[row_at]), str(path))


def built_graph(
    vectors: Halves, parameters: IndexParameters, progress: Progress
) -> tuple[Any, Rows]:
    """Build an `IndexHNSWSQ` over vectors [R, d]; return it and the row at each of its places [R].

    faiss links each of a batch's rows only to earlier rows, and then adds the links back in a fixed
    order. So the number of threads does not change the graph.
    """
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
    # Sorted only after the insertion: if rows were inserted in this order, links would be worse.
    row_at = cluster_order(vectors)
    index.permute_entries(row_at)
    return index, row_at


def open(path: Path, *, nodes: Rows, dimension: int) -> Graph:
    """Open a written graph memory-mapped. Processes share it through the page cache.

    Raises `BundleAltered` if the file is damaged or does not match `nodes` and `dimension`.
    """
    index = read(path, faiss.IndexHNSWSQ, nodes=nodes, dimension=dimension)
    graph = faiss.downcast_index(index.index)
    return FaissGraph(index, faiss.downcast_index(graph.storage))


def read(path: Path, kind: Any, *, nodes: Rows, dimension: int) -> Any:
    """Read an `IndexIDMap` over an index of one `kind`, memory-mapped; raises `BundleAltered`."""
    try:
        index = faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC)
    except RuntimeError as error:  # faiss raises only this, whatever is wrong
        raise BundleAltered(f"{path.name} is not an index that faiss can read") from error
    graph = faiss.downcast_index(index.index) if isinstance(index, faiss.IndexIDMap) else index
    if graph is index or not isinstance(graph, kind):
        raise BundleAltered(
            f"{path.name} holds a {type(graph).__name__}, expected {kind.__name__} below a map"
        )
    if (index.ntotal, index.d) != (len(nodes), dimension):
        raise BundleAltered(
            f"{path.name} holds {index.ntotal} distinct keys of {index.d} dimensions;"
            f" expected are {len(nodes)} of {dimension}"
        )
    if graph.metric_type != faiss.METRIC_INNER_PRODUCT:
        raise BundleAltered(f"{path.name} compares by another metric than the inner product")
    if not _ends_with_its_map(index, path):
        raise BundleAltered(f"{path.name} is cut off")
    if not np.array_equal(np.sort(faiss.vector_to_array(index.id_map)), nodes):
        raise BundleAltered(f"{path.name} has places without a node of their own")
    return index


def _ends_with_its_map(index: Any, path: Path) -> bool:
    """Return whether the file has the map's last number; faiss does not notice if it is cut."""
    row_at = faiss.vector_to_array(index.id_map)
    size = path.stat().st_size
    if not len(row_at):
        return True
    return bool(np.fromfile(path, np.int64, offset=size - row_at.itemsize)[0] == row_at[-1])


def numbered(index: Any, row_at: Rows) -> Any:
    """Return a filled index below a map that gives its places the numbers `row_at` [R].

    The map owns the index, because faiss takes an assigned index from its Python object.
    """
    mapped = faiss.IndexIDMap(faiss.IndexFlatIP(index.d))  # it takes only an empty index
    mapped.index, mapped.ntotal, mapped.own_fields = index, index.ntotal, True
    faiss.copy_array_to_vector(row_at, mapped.id_map)
    return mapped


def cluster_order(vectors: Halves) -> Rows:
    """Return the row numbers [R] of unit vectors [R, d], sorted by cluster.

    The clusters are those of spherical k-means. Within a cluster, rows keep their order.
    """
    rows, dimension = vectors.shape
    count = min(1 + rows // _ROWS_PER_CLUSTER, _MOST_CLUSTERS)
    if count == 1:
        return np.arange(rows)
    step = max(1, rows // (count * _TRAINING_ROWS_PER_CLUSTER))
    clusters = faiss.Kmeans(dimension, count, niter=_ITERATIONS, spherical=True, seed=0)
    clusters.train(vectors[::step].astype(np.float32))
    cluster_of = np.empty(rows, np.int64)
    for batch in batches(rows, _ASSIGNED_ROWS):
        nearest = clusters.index.search(vectors[batch].astype(np.float32), 1)[1]
        cluster_of[batch] = nearest[:, 0]
    return np.argsort(cluster_of, kind="stable").astype(np.int64)

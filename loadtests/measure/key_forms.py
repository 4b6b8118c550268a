"""Forms of the keys that a walk through the graph may read in place of fp16 vectors.

Each form walks the bundle's graph, which was built over the fp16 keys, so that forms differ in
nothing else. A walk over shorter keys finds more rows than are needed, and these are scored again
with the fp16 keys.

Shapes: R keys, d dimensions, d' dimensions of cut keys, B queries.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import faiss
import numpy as np

from service.core.bundle.bundle import BASE_SEGMENT, Bundle
from service.core.index.row_order import cluster_order
from service.core.types import Floats, Rows

_FP16, _8BIT = faiss.ScalarQuantizer.QT_fp16, faiss.ScalarQuantizer.QT_8bit


@dataclass(frozen=True, kw_only=True)
class KeyForm:
    """The bundle's graph over one form of its keys.

    `row_at` [R] is the row at each place of the index. `spare` is how many times the wanted rows a
    walk finds before they are scored again, None where they are not.
    """

    name: str
    walked: Any  # the faiss index whose graph is walked
    row_at: Rows
    cut: Any = None  # the transformation before it
    refined: Any = None  # the index that scores the rows again
    spare: float | None = None
    kept: tuple[Any, ...] = ()  # what faiss's indexes only point to

    @property
    def walked_bytes(self) -> int:
        """Bytes of all keys that a walk may read."""
        return int(self.walked.ntotal * self.walked.storage.sa_code_size())

    def search(self, queries: Floats, *, count: int, ef: int) -> tuple[Floats, Rows]:
        """Find the `count` nearest rows of queries [B, d] as `Segment.search` does."""
        walk = faiss.SearchParametersHNSW(efSearch=max(ef, count))
        if self.spare is None:
            similarities, places = self.walked.search(queries, count, params=walk)
            return similarities, self.row_at[places]
        if self.cut is not None:
            walk = faiss.SearchParametersPreTransform(index_params=walk)
        parameters = faiss.IndexRefineSearchParameters(k_factor=self.spare, base_index_params=walk)
        similarities, places = self.refined.search(queries, count, params=parameters)
        return similarities, self.row_at[places]


def key_forms(bundle: Bundle) -> Iterator[KeyForm]:
    """Yield the bundle's graph over its keys as they are served, and over other forms of them."""
    graph, row_at = _sorted_graph(bundle)
    keys = bundle.keys[row_at].astype(np.float32)
    yield KeyForm(name="fp16", walked=graph, row_at=row_at)
    numbered, _ = _sorted_graph(bundle)
    numbered.permute_entries(np.argsort(row_at))
    yield KeyForm(name="fp16, rows as numbered", walked=numbered, row_at=np.arange(len(keys)))
    scored_again = partial(_scored_again, graph, keys, row_at=row_at)
    yield scored_again("8 bits", kind=_8BIT, spare=1.2)
    axes = principal_axes(keys)
    for dimensions, spare in ((256, 1.2), (192, 1.5)):
        for kind, bits in ((_FP16, "fp16"), (_8BIT, "8 bits")):
            yield scored_again(
                f"PCA {dimensions}, {bits}", kind=kind, spare=spare, axes=axes[:dimensions]
            )
    first = np.eye(256, keys.shape[1], dtype=np.float32)
    yield scored_again("first 256, fp16", kind=_FP16, spare=1.2, axes=first)


def principal_axes(keys: Floats) -> Floats:
    """Orthonormal axes [d, d], those first that keep most of the inner products of keys [R, d].

    These are the eigenvectors of the second moment: centred keys would have other inner products.
    """
    _, vectors = np.linalg.eigh(keys.T @ keys)
    return np.ascontiguousarray(vectors[:, ::-1].T, np.float32)


def _sorted_graph(bundle: Bundle) -> tuple[Any, Rows]:
    """The bundle's graph with its rows sorted by cluster, and the row at each place [R]."""
    index = faiss.read_index(str(bundle.folder / BASE_SEGMENT))
    if isinstance(index, faiss.IndexIDMap):
        index.own_fields = False  # the graph outlives the map
        return faiss.downcast_index(index.index), faiss.vector_to_array(index.id_map)
    row_at = cluster_order(bundle.keys)
    index.permute_entries(row_at)
    return index, row_at


def _scored_again(
    graph: Any,
    keys: Floats,
    name: str,
    *,
    row_at: Rows,
    kind: int,
    spare: float,
    axes: Floats | None = None,
) -> KeyForm:
    storage = faiss.IndexScalarQuantizer(
        keys.shape[1] if axes is None else len(axes), kind, faiss.METRIC_INNER_PRODUCT
    )
    cut_keys = keys if axes is None else np.ascontiguousarray(keys @ axes.T)
    storage.train(cut_keys)
    storage.add(cut_keys)
    walked = base = _with_storage(graph, storage)
    cut = None
    if axes is not None:
        cut = faiss.LinearTransform(keys.shape[1], len(axes), False)
        faiss.copy_array_to_vector(np.ascontiguousarray(axes).ravel(), cut.A)
        cut.is_trained = True
        base = faiss.IndexPreTransform(cut, walked)
    return KeyForm(
        name=name,
        walked=walked,
        cut=cut,
        refined=faiss.IndexRefine(base, faiss.downcast_index(graph.storage)),
        spare=spare,
        row_at=row_at,
        kept=(graph, storage, base),
    )


def _with_storage(graph: Any, storage: Any) -> Any:
    """The graph over other vectors of the same rows; faiss has no copy that leaves them out."""
    index = faiss.IndexHNSWSQ()
    index.d, index.ntotal, index.metric_type = storage.d, storage.ntotal, storage.metric_type
    index.is_trained, index.own_fields = True, False
    index.hnsw, index.storage = graph.hnsw, storage
    return index

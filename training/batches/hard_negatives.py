"""Hard negatives (RAE-XMC 3.4, ANCE): the labels nearest to an instance that are not its positives.

Shapes: N rows, n rows searched at once, L labels, d dimensions.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from scipy.sparse import csr_matrix

from service.core.index.exact import exact_search
from service.core.index.frozen_segment import build_segment
from service.core.index.libraries import IndexParameters
from service.core.index.protocol import RowFilter, batches
from service.core.types import Floats, Halves, Rows
from training.batches.batch import HardNegatives

_CHUNK = 1_024  # rows searched at once


def mine_hard_negatives(
    *,
    instances: Floats,
    labels: Floats,
    labels_of: csr_matrix,
    filtered: csr_matrix,
    top: int,
    library: str,
) -> HardNegatives:
    """Return the `top` nearest labels of each row that are neither positive nor filtered.

    Takes unit vectors [N, d] and [L, d]; returns [N, top], padded with -1. `library` is an index
    library of the service, or `exact`.
    """
    excluded = csr_matrix((labels_of != 0) + (filtered != 0))
    mined = np.full((len(instances), top), -1, np.int32)
    with tempfile.TemporaryDirectory() as folder:
        search = _searcher(labels.astype(np.float16), library, Path(folder))
        for chunk in batches(len(instances), _CHUNK):
            # A row's excluded labels may all be among its nearest, so search for as many more.
            most = int(np.diff(excluded.indptr[chunk.start : chunk.stop + 1]).max(initial=0))
            queries = np.ascontiguousarray(instances[chunk], np.float32)
            rows = search(queries, min(len(labels), top + most))
            mined[chunk] = _without(rows, excluded[chunk], top)
    return mined


def _searcher(keys: Halves, library: str, folder: Path) -> Callable[[Floats, int], Rows]:
    """Return a function of queries and a count that returns each query's nearest keys."""
    if library == "exact":
        whole = RowFilter(start=0, stop=len(keys))
        return lambda queries, count: exact_search(keys, queries, count=count, row_filter=whole)[1]
    parameters = IndexParameters(library=library)
    segment = build_segment(keys, parameters, folder / "labels.index", lambda done: None)
    return lambda queries, count: segment.search(
        queries, count=count, ef=max(parameters.ef, count), row_filter=None
    )[1]


def _without(rows: Rows, excluded: csr_matrix, top: int) -> HardNegatives:
    """Return the first `top` labels of each line of `rows` that are not excluded, [n, top]."""
    is_excluded = np.zeros((len(rows), excluded.shape[1] + 1), bool)
    is_excluded[np.repeat(np.arange(len(rows)), np.diff(excluded.indptr)), excluded.indices] = True
    is_excluded[:, -1] = True  # the index -1 marks a missing label
    out = np.take_along_axis(is_excluded, rows, axis=1)
    order = np.argsort(out, axis=1, kind="stable")[:, :top]
    kept = np.where(np.take_along_axis(out, order, 1), -1, np.take_along_axis(rows, order, 1))
    missing = top - kept.shape[1]
    return np.pad(kept, ((0, 0), (0, max(0, missing))), constant_values=-1).astype(np.int32)

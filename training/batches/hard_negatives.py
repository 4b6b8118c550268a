"""Hard negatives (RAE-XMC 3.4, ANCE): the labels nearest to an instance that are not its positives.

Shapes: N rows, n of them searched at once, L labels, d dimensions.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from scipy.sparse import csr_matrix

from service.core.index.exact import exact_search
from service.core.index.libraries import IndexParameters, load_library
from service.core.index.protocol import RowFilter, batches
from service.core.types import Floats, Rows
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
    """The `top` nearest labels of each row without its positives and its filtered labels.

    Takes unit vectors [N, d] and [L, d]; returns [N, top], -1 where there are fewer. `library` is
    an index library of the service, or `exact`.
    """
    excluded = csr_matrix((labels_of != 0) + (filtered != 0))
    mined = np.full((len(instances), top), -1, np.int32)
    with tempfile.TemporaryDirectory() as folder:
        for chunk, rows in _search(instances, labels, excluded, top, library, Path(folder)):
            mined[chunk] = _without(rows, excluded[chunk], top)
    return mined


def _search(
    instances: Floats, labels: Floats, excluded: csr_matrix, top: int, library: str, folder: Path
) -> Iterator[tuple[slice, Rows]]:
    keys, segment = labels.astype(np.float16), None
    if library != "exact":
        adapter, path = load_library(library), folder / "labels.index"
        parameters = IndexParameters(library=library)
        adapter.build(keys, parameters, path, lambda done: None)
        segment = adapter.open(path, rows=len(keys), dimension=keys.shape[1])
    for chunk in batches(len(instances), _CHUNK):
        queries = np.ascontiguousarray(instances[chunk], np.float32)
        # All excluded labels of a row may be nearer than the others.
        most = int(np.diff(excluded.indptr[chunk.start : chunk.stop + 1]).max(initial=0))
        count = min(len(keys), top + most)
        if segment is None:
            row_filter = RowFilter(start=0, stop=len(keys))
            yield chunk, exact_search(keys, queries, count=count, row_filter=row_filter)[1]
        else:
            ef = max(IndexParameters().ef, count)
            yield chunk, segment.search(queries, count=count, ef=ef, row_filter=None)[1]


def _without(rows: Rows, excluded: csr_matrix, top: int) -> HardNegatives:
    """The first `top` labels of each line of `rows` that are not excluded, [n, top]."""
    is_excluded = np.zeros((len(rows), excluded.shape[1] + 1), bool)
    is_excluded[np.repeat(np.arange(len(rows)), np.diff(excluded.indptr)), excluded.indices] = True
    is_excluded[:, -1] = True  # the index -1 marks a missing label
    out = np.take_along_axis(is_excluded, rows, axis=1)
    order = np.argsort(out, axis=1, kind="stable")[:, :top]
    kept = np.where(np.take_along_axis(out, order, 1), -1, np.take_along_axis(rows, order, 1))
    missing = top - kept.shape[1]
    return np.pad(kept, ((0, 0), (0, max(0, missing))), constant_values=-1).astype(np.int32)

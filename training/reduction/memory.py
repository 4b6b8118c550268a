"""The instance block of a memory, whole and reduced.

Shapes: N instances, m of them or of their means after reduction, L labels, d dimensions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_matrix

from service.core.index.exact import exact_search
from service.core.index.protocol import RowFilter
from service.core.types import Floats, Rows


@dataclass(frozen=True, kw_only=True, eq=False)
class WholeMemory:
    """The input of a method of reduction."""

    instances: Floats  # [N, d] unit vectors
    labels_of: csr_matrix  # [N, L]
    labels: Floats  # [L, d] unit vectors


@dataclass(frozen=True, kw_only=True, eq=False)
class ReducedMemory:
    """Fewer keys; `texts_of` names the row whose text a key is shown with."""

    instances: Floats  # [m, d] unit vectors
    labels_of: csr_matrix  # [m, L]
    texts_of: Rows  # [m] rows of the whole memory


def kept(memory: WholeMemory, rows: Rows) -> ReducedMemory:
    """The memory of some of its rows, in their order."""
    rows = np.sort(rows)
    return ReducedMemory(
        instances=memory.instances[rows], labels_of=memory.labels_of[rows], texts_of=rows
    )


def neighbours(vectors: Floats, *, count: int) -> tuple[Floats, Rows]:
    """The `count` nearest other vectors of each of [n, d], descending; -1 where there are fewer."""
    row_filter = RowFilter(start=0, stop=len(vectors))
    found = exact_search(
        vectors.astype(np.float16), vectors, count=count + 1, row_filter=row_filter
    )
    similarities, rows = found
    # Subtle: among many equal vectors the search may not return a vector itself.
    own = rows == np.arange(len(vectors))[:, None]
    own[~own.any(axis=1), -1] = True
    shape = (len(vectors), count)
    return similarities[~own].reshape(shape), rows[~own].reshape(shape)


def presence(labels_of: csr_matrix) -> csr_matrix:
    """Y as 0 and 1 in fp32, its columns in order."""
    present = csr_matrix(labels_of != 0).astype(np.float32)
    present.sort_indices()
    return present

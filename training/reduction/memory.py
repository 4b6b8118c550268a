"""A memory's instances, before and after reduction.

Shapes: N instances, m instances (or means of instances) after reduction, L labels, d dimensions.
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
    """The memory that a reduction method starts from."""

    instances: Floats  # [N, d] unit vectors
    labels_of: csr_matrix  # [N, L]
    labels: Floats  # [L, d] unit vectors


@dataclass(frozen=True, kw_only=True, eq=False)
class ReducedMemory:
    """Fewer instance keys; `texts_of` has the row whose text is shown for each key."""

    instances: Floats  # [m, d] unit vectors
    labels_of: csr_matrix  # [m, L]
    texts_of: Rows  # [m], rows of the whole memory


def kept(memory: WholeMemory, rows: Rows) -> ReducedMemory:
    """The memory reduced to these rows, in ascending order."""
    rows = np.sort(rows)
    return ReducedMemory(
        instances=memory.instances[rows], labels_of=memory.labels_of[rows], texts_of=rows
    )


def neighbours(vectors: Floats, *, count: int) -> tuple[Floats, Rows]:
    """Similarities and rows of the `count` nearest other vectors of each vector, [n, count] each.

    They are ordered by falling similarity; missing neighbours have row -1.
    """
    row_filter = RowFilter(start=0, stop=len(vectors))
    similarities, rows = exact_search(
        vectors.astype(np.float16), vectors, count=count + 1, row_filter=row_filter
    )
    # Subtle: if many vectors are equal, the search may not return the vector itself.
    is_itself = rows == np.arange(len(vectors))[:, None]
    is_itself[~is_itself.any(axis=1), -1] = True
    shape = (len(vectors), count)
    return similarities[~is_itself].reshape(shape), rows[~is_itself].reshape(shape)


def presence(labels_of: csr_matrix) -> csr_matrix:
    """Y with fp32 entries 0 and 1, and ascending columns in each row."""
    present = csr_matrix(labels_of != 0).astype(np.float32)
    present.sort_indices()
    return present

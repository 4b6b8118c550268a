"""The seen labels whose classifiers IRENE's combiner takes for a seen label (section 4.1).

They are labels that co-occur with it in a training row, of those the nearest by text. A novel label
has only its text to find such neighbours by, so training prefers neighbours that text can find.

Shapes: N training rows, L labels, m associated labels, d dimensions.
"""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_matrix

from service.core.types import Floats, Rows

BLOCK = 256  # labels whose co-occurring labels are counted at once
MOST = 4_096  # co-occurring labels compared by text: those that share most rows


def associations(*, labels_of: csr_matrix, texts: Floats, count: int) -> Rows:
    """S_l of every label, [L, m] label columns, the nearest first, -1 where there are fewer.

    `labels_of` [N, L] are the labels of the training rows, `texts` [L, d] the labels' unit vectors.
    """
    pairs = csr_matrix(labels_of != 0).astype(np.float32)
    rows_of = csr_matrix(pairs.T)
    associated = np.full((pairs.shape[1], count), -1, np.int64)
    for start in range(0, len(associated), BLOCK):
        shared = csr_matrix(rows_of[start : start + BLOCK] @ pairs)  # [block, L] rows in common
        for label in range(shared.shape[0]):
            entries = slice(shared.indptr[label], shared.indptr[label + 1])
            candidates, rows = shared.indices[entries], shared.data[entries]
            others = candidates != start + label
            nearest = _nearest(candidates[others], rows[others], texts, texts[start + label], count)
            associated[start + label, : len(nearest)] = nearest
    return associated


def _nearest(candidates: Rows, shared: Floats, texts: Floats, text: Floats, count: int) -> Rows:
    """The `count` of `candidates` nearest to `text`, descending; ties in order of columns."""
    if len(candidates) > MOST:
        candidates = candidates[np.lexsort((candidates, -shared))[:MOST]]
    similarities = texts[candidates] @ text
    return np.asarray(candidates[np.lexsort((candidates, -similarities))[:count]], np.int64)

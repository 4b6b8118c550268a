"""Which seen labels stand beside a seen label in IRENE's combiner (section 4.1).

Labels that share a training row with it, of those the nearest by text: what clicks say, where texts
agree, since a novel label will have nothing but its text to find them by.

Shapes: N training rows, L labels, m associated labels, d dimensions.
"""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_matrix

from service.core.types import Floats, Rows

BLOCK = 256  # labels whose company is looked at together
MOST = 4_096  # of a label's company: those that it shares most rows with


def associations(*, labels_of: csr_matrix, texts: Floats, count: int) -> Rows:
    """S_l of every label, [L, m] columns, the nearest first, -1 where there are fewer.

    `labels_of` [N, L] are the training rows' labels, `texts` [L, d] the labels' unit vectors.
    """
    pairs = csr_matrix(labels_of != 0).astype(np.float32)
    rows_of = csr_matrix(pairs.T)
    found = np.full((pairs.shape[1], count), -1, np.int64)
    for start in range(0, len(found), BLOCK):
        shared = csr_matrix(rows_of[start : start + BLOCK] @ pairs)  # [block, L] rows in common
        for label in range(shared.shape[0]):
            entries = slice(shared.indptr[label], shared.indptr[label + 1])
            company, rows = shared.indices[entries], shared.data[entries]
            apart = company != start + label
            nearest = _nearest(company[apart], rows[apart], texts, texts[start + label], count)
            found[start + label, : len(nearest)] = nearest
    return found


def _nearest(company: Rows, shared: Floats, texts: Floats, text: Floats, count: int) -> Rows:
    """The `count` of `company` that are nearest to `text`, descending; ties in order of columns."""
    if len(company) > MOST:
        company = company[np.lexsort((company, -shared))[:MOST]]
    similarities = texts[company] @ text
    return np.asarray(company[np.lexsort((company, -similarities))[:count]], np.int64)

"""Nearest class means (NCM, Mensink et al. 2013): a label as the mean of its queries.

Shapes: n rows, L labels, d dimensions.
"""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_matrix

from service.core.types import Floats
from training.datasets.propensity import label_frequency


def class_means(
    labels_of: csr_matrix, instances: Floats, texts: Floats, *, text_weight: float
) -> Floats:
    """Unit vectors [L, d] of rows [n, L] with vectors [n, d] and the labels' texts [L, d].

    A text counts as much as `text_weight` queries, and is all that a label without a row has. Every
    pair counts alike, whatever its relevance.
    """
    pairs = csr_matrix(labels_of != 0).astype(np.float32)
    sums = np.asarray(pairs.T @ instances, np.float32) + np.float32(text_weight) * texts
    alone = label_frequency(pairs) == 0
    sums[alone] = texts[alone]
    lengths = np.linalg.norm(sums, axis=1, keepdims=True)
    means: Floats = sums / np.maximum(lengths, 1e-12)
    return means

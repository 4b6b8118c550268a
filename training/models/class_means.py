"""Nearest class means (NCM, Mensink et al. 2013): a label's vector is the mean of its queries'.

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
    """Return unit vectors [L, d]: the mean of each label's instances [n, d] and text [L, d].

    A text weighs as much as `text_weight` instances; a label without instances keeps its text
    vector. All pairs of `labels_of` [n, L] weigh the same, whatever their relevance.
    """
    pairs = csr_matrix(labels_of != 0).astype(np.float32)
    sums = np.asarray(pairs.T @ instances, np.float32) + np.float32(text_weight) * texts
    without_rows = label_frequency(pairs) == 0
    sums[without_rows] = texts[without_rows]
    lengths = np.linalg.norm(sums, axis=1, keepdims=True)
    means: Floats = sums / np.maximum(lengths, 1e-12)
    return means

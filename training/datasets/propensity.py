"""Propensities of Jain et al. (2016): the probability that a true label was recorded.

Shapes: N training instances, L labels.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix


def label_frequency(labels_of: csr_matrix) -> NDArray[np.int64]:
    """Return the number of rows that have each label, [L], whatever its relevance."""
    return np.bincount(labels_of.indices, minlength=labels_of.shape[1]).astype(np.int64)


def inverse_propensity(labels_of_train: csr_matrix, *, a: float, b: float) -> NDArray[np.float64]:
    """Return 1 + C (n_l + b)^-a with C = (ln N - 1)(b + 1)^a, [L].

    N counts all training rows, also those without labels, as the public tools do. With fewer than
    three rows C is negative, and the metrics mean nothing.
    """
    c = (math.log(labels_of_train.shape[0]) - 1.0) * (b + 1.0) ** a
    inverse: NDArray[np.float64] = 1.0 + c * (label_frequency(labels_of_train) + b) ** -a
    return inverse

"""Propensities of Jain et al. (2016): how likely a true label was to be recorded at all.

Shapes: N training instances, L labels.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix


def label_frequency(labels_of: csr_matrix) -> NDArray[np.int64]:
    """Return [L], in how many rows each label stands, whatever its relevance."""
    return np.bincount(labels_of.indices, minlength=labels_of.shape[1]).astype(np.int64)


def inverse_propensity(labels_of_train: csr_matrix, *, a: float, b: float) -> NDArray[np.float64]:
    """Return [L], 1 + C (n_l + b)^-a with C = (ln N - 1)(b + 1)^a.

    N counts all training rows, those without labels too, as the public tooling does. Below three
    rows C is negative: such data is too small for these metrics to mean anything.
    """
    c = (math.log(labels_of_train.shape[0]) - 1.0) * (b + 1.0) ** a
    inverse: NDArray[np.float64] = 1.0 + c * (label_frequency(labels_of_train) + b) ** -a
    return inverse

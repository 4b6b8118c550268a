"""Pairs of training rows and labels: which ones count, and which are drawn as positives.

Shapes: N training rows, L labels.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from scipy.sparse import csr_matrix

from service.core.types import Rows


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainingPairs:
    """The labels of all training rows; filtered pairs are neither positives nor negatives."""

    labels_of: csr_matrix  # [N, L]
    filtered: csr_matrix  # [N, L]
    drawable: csr_matrix = field(init=False)  # [N, L] bool, the labels that are not filtered

    def __post_init__(self) -> None:
        """Compute `drawable`."""
        drawable = csr_matrix(self.labels_of != 0)
        drawable = csr_matrix(drawable > drawable.multiply(self.filtered != 0))
        drawable.eliminate_zeros()
        drawable.sort_indices()
        object.__setattr__(self, "drawable", drawable)

    @cached_property
    def relevance(self) -> csr_matrix:
        """The relevance of the drawable pairs [N, L], in the order of `drawable`."""
        relevance = csr_matrix(csr_matrix(self.labels_of).multiply(self.drawable))
        relevance.sort_indices()
        return relevance

    def trainable(self) -> Rows:
        """The rows that have at least one drawable label, ascending."""
        return np.flatnonzero(np.diff(self.drawable.indptr)).astype(np.int64)

    @property
    def labels(self) -> int:
        """L, the number of labels."""
        return int(self.labels_of.shape[1])

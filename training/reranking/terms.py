"""Terms that a query and a candidate have in common: trigrams, words, metadata items.

Shapes: n queries, m candidates, L labels, T different terms.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_matrix

from service.core.types import Doubles
from training.reranking.candidates import Candidates

_TOGETHER = 65_536  # pairs whose terms are compared at a time


@dataclass(frozen=True, kw_only=True, eq=False)
class Terms:
    """Which terms each query and each label has, with a weight for each term."""

    queries: csr_matrix  # [n, T] of 0 and 1
    labels: csr_matrix  # [L, T]
    weights: Doubles  # [T]

    def overlap(self, candidates: Candidates) -> tuple[Doubles, Doubles, Doubles]:
        """The weight of the common terms of each pair, of the query's and of the label's, [m]."""
        common = np.zeros(len(candidates))
        for start in range(0, len(common), _TOGETHER):
            part = slice(start, start + _TOGETHER)
            ours = self.queries[candidates.queries[part]]
            common[part] = ours.multiply(self.labels[candidates.labels[part]]) @ self.weights
        of_queries, of_labels = self.queries @ self.weights, self.labels @ self.weights
        return common, of_queries[candidates.queries], of_labels[candidates.labels]


def inverse_frequency(labels: csr_matrix) -> Doubles:
    """The logarithm of each term's inverse frequency among labels [L, T], [T]."""
    having = np.bincount(labels.indices, minlength=labels.shape[1])
    weights: Doubles = np.log((1.0 + labels.shape[0]) / (1.0 + having))
    return weights

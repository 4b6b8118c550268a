"""Terms that a query and a candidate have in common, such as metadata items.

Shapes: n queries, m candidates, L labels, T different terms.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_matrix

from service.core.index.protocol import batches
from service.core.types import Doubles
from training.datasets.propensity import label_frequency
from training.reranking.pairs import Pairs

_TOGETHER = 65_536  # pairs whose terms are compared at a time


@dataclass(frozen=True, kw_only=True, eq=False)
class Terms:
    """How much each query and each label has of each term (0 or 1, or less), and its weight."""

    queries: csr_matrix  # [n, T]
    labels: csr_matrix  # [L, T]
    weights: Doubles  # [T]

    def overlap(self, candidates: Pairs) -> tuple[Doubles, Doubles, Doubles]:
        """The weight of the common terms of each pair, of the query's and of the label's, [m]."""
        common = np.zeros(len(candidates))
        for part in batches(len(common), _TOGETHER):
            ours = self.queries[candidates.queries[part]]
            common[part] = ours.multiply(self.labels[candidates.labels[part]]) @ self.weights
        of_queries, of_labels = self.queries @ self.weights, self.labels @ self.weights
        return common, of_queries[candidates.queries], of_labels[candidates.labels]


def inverse_frequency(labels: csr_matrix) -> Doubles:
    """The logarithm of each term's inverse frequency among labels [L, T], [T]."""
    weights: Doubles = np.log((1.0 + labels.shape[0]) / (1.0 + label_frequency(labels)))
    return weights

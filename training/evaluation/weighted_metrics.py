"""P@k, R@k and nDCG@k if more relevant labels count more: generalized precision and recall.

With the weights y of a row's positives, a label's gain is g = y / (the largest y of the row), and 0
for a label that is no positive. With the k ranked labels l_1, l_2, ... of a row, and its gains
g_(1) >= g_(2) >= ... in the best order, the metrics are the means over the rows of:

    weighted P@k     sum over j <= k of g(l_j), divided by k
    weighted R@k     sum over j <= k of g(l_j), divided by the sum of all gains of the row
    weighted nDCG@k  sum over j <= k of g(l_j) / log2(j + 1), divided by that of g_(1), g_(2), ...

(Kekäläinen and Järvelin, "Using graded relevance assessments in IR evaluation", 2002.) They lie in
[0, 1], do not depend on a row's scale, and equal P@k, R@k and nDCG@k if all labels of a row have
the same weight.

Shapes: N rows, L labels, K ranked labels per row (-1: none), n rows with a label that counts.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from training.datasets.pair_weights import vote_weights
from training.evaluation.metrics import (
    KS,
    RECALL_KS,
    RankingOutcome,
    best_gains,
    ndcg,
    precision,
    ranking_outcome,
    recall,
    unfiltered_positives,
)

WEIGHTED = "weighted "  # prefix of the metrics' names
SHOWN_WEIGHTED = tuple(f"{WEIGHTED}{name}" for name in ("P@1", "P@5", "nDCG@5", "R@100"))
ALL_ALIKE = "the labels of each test row weigh the same: weighted figures are the plain ones"


def weighted_outcome(
    ranked: NDArray[np.integer], weights: csr_matrix, *, filtered: csr_matrix | None = None
) -> RankingOutcome:
    """Return the `ranking_outcome` of `ranked` [N, K] with gains computed from `weights` [N, L]."""
    outcome = ranking_outcome(ranked, weights, filtered=filtered)
    counted = csr_matrix(
        weights.multiply(unfiltered_positives(weights, filtered)), dtype=np.float64
    )
    counted = counted[np.flatnonzero(np.diff(counted.indptr))]  # [n, L], as in the outcome
    largest = counted.max(axis=1).toarray()  # [n, 1]
    gains = csr_matrix(counted.multiply(1.0 / largest))
    rows = np.arange(len(outcome.ranked))[:, None]
    found = np.asarray(gains[rows, np.maximum(outcome.ranked, 0)].todense())
    return replace(
        outcome,
        hits=np.where(outcome.hits, found, 0.0),
        sizes=np.asarray(gains.sum(axis=1)).ravel(),
        best=best_gains(gains, gains.data, k=ranked.shape[1]),
    )


def weighted_table(
    ranked: NDArray[np.integer], weights: csr_matrix, *, filtered: csr_matrix | None = None
) -> dict[str, float]:
    """Return the weighted metrics in percent, keyed `weighted P@1`, ..."""
    outcome = weighted_outcome(ranked, weights, filtered=filtered)
    table = {f"P@{k}": precision(outcome, k=k) for k in KS}
    table |= {f"nDCG@{k}": ndcg(outcome, k=k) for k in KS}
    table |= {f"R@{k}": recall(outcome, k=k) for k in RECALL_KS}
    return {WEIGHTED + name: 100.0 * value for name, value in table.items()}


def weights_differ(weights: csr_matrix) -> bool:
    """Whether any row's labels have different weights; otherwise the plain metrics say the same."""
    return vote_weights(weights) is not None

"""P@k, R@k and nDCG@k where a more relevant label counts more: generalized precision and recall.

With the weights y of a row's positives, a label's gain is g = y / (the largest y of the row), and 0
for a label that is no positive. With the k ranked labels l_1, l_2, ... of a row, and its gains
g_(1) >= g_(2) >= ... in the best order, the metrics are the means over the rows of

    weighted P@k     sum over j <= k of g(l_j), divided by k
    weighted R@k     sum over j <= k of g(l_j), divided by the sum of all gains of the row
    weighted nDCG@k  sum over j <= k of g(l_j) / log2(j + 1), divided by that of g_(1), g_(2), ...

(Kekäläinen and Järvelin, "Using graded relevance assessments in IR evaluation", 2002.) They lie in
[0, 1], do not depend on a row's scale, and are P@k, R@k and nDCG@k where a row's labels weigh the
same.

Shapes: N rows, L labels, K ranked labels a row (-1: none), n rows that have a label that counts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from training.evaluation.metrics import Floats, discounts, ranking_outcome

WEIGHTED = "weighted "  # before the name of the metric
SHOWN_WEIGHTED = tuple(f"{WEIGHTED}{name}" for name in ("P@1", "P@5", "nDCG@5", "R@100"))
ALL_ALIKE = "the labels of each test row weigh the same: weighted figures are the plain ones"


@dataclass(frozen=True, kw_only=True, eq=False)
class Gains:
    """Gains of the ranked labels [n, K], 0 for a miss, and those of the best order [n, K]."""

    ranked: Floats
    best: Floats
    total: Floats  # [n], the sum of all gains of a row


def gains_of(
    ranked: NDArray[np.integer], weights: csr_matrix, *, filtered: csr_matrix | None = None
) -> Gains:
    """The gains of `ranked` [N, K] by the weights [N, L] of the positives.

    `filtered` [N, L] pairs count neither as ranked nor as positives, and rows without a positive
    are left out, as in `ranking_outcome`, which also says what it raises.
    """
    outcome = ranking_outcome(ranked, weights, filtered=filtered)
    counted = csr_matrix(_labelled(weights, filtered), dtype=np.float64)
    largest = counted.max(axis=1).toarray()  # [n, 1]
    gains = csr_matrix(counted.multiply(1.0 / largest))
    rows = np.arange(len(outcome.ranked))[:, None]
    found = np.asarray(gains[rows, np.maximum(outcome.ranked, 0)].todense())
    return Gains(
        ranked=np.where(outcome.hits, found, 0.0),
        best=_largest_first(gains, columns=ranked.shape[1]),
        total=np.asarray(gains.sum(axis=1)).ravel(),
    )


def precision(gains: Gains, *, k: int) -> float:
    """Weighted P@k."""
    return float(gains.ranked[:, :k].sum(axis=1).mean() / k)


def recall(gains: Gains, *, k: int) -> float:
    """Weighted R@k."""
    return float((gains.ranked[:, :k].sum(axis=1) / gains.total).mean())


def ndcg(gains: Gains, *, k: int) -> float:
    """Weighted nDCG@k."""
    discount = discounts(k)
    return float((gains.ranked[:, :k] @ discount / (gains.best[:, :k] @ discount)).mean())


def weighted_table(
    ranked: NDArray[np.integer],
    weights: csr_matrix,
    *,
    filtered: csr_matrix | None = None,
    ks: tuple[int, ...] = (1, 3, 5),
    recall_ks: tuple[int, ...] = (10, 30, 100),
) -> dict[str, float]:
    """The weighted metrics in percent, keyed `weighted P@1`, ...; arguments as in `gains_of`."""
    gains = gains_of(ranked, weights, filtered=filtered)
    table = {f"P@{k}": precision(gains, k=k) for k in ks}
    table |= {f"nDCG@{k}": ndcg(gains, k=k) for k in ks}
    table |= {f"R@{k}": recall(gains, k=k) for k in recall_ks}
    return {WEIGHTED + name: 100.0 * value for name, value in table.items()}


def weights_differ(weights: csr_matrix) -> bool:
    """Whether the labels of any row weigh differently, so that these metrics say more."""
    starts = weights.indptr[:-1][np.diff(weights.indptr) > 0]
    if not len(starts):
        return False
    lowest = np.minimum.reduceat(weights.data, starts)
    return bool((lowest != np.maximum.reduceat(weights.data, starts)).any())


def _labelled(weights: csr_matrix, filtered: csr_matrix | None) -> csr_matrix:
    """The weights [n, L] of the positives that are not filtered, of rows that have one."""
    counted = csr_matrix(weights, copy=True)
    if filtered is not None and filtered.nnz:
        counted = csr_matrix(counted - counted.multiply(filtered))
    counted.eliminate_zeros()
    return counted[np.flatnonzero(np.diff(counted.indptr))]


def _largest_first(gains: csr_matrix, *, columns: int) -> Floats:
    """The gains of each row, descending, [n, columns]; 0 where a row has fewer."""
    counts = np.diff(gains.indptr)
    rows = np.repeat(np.arange(len(counts)), counts)
    order = np.lexsort((-gains.data, rows))  # by row, then largest first
    place = np.arange(len(order)) - gains.indptr[rows]
    best = np.zeros((len(counts), columns))
    inside = place < columns
    best[rows[inside], place[inside]] = gains.data[order][inside]
    return best

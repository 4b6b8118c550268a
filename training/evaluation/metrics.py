"""The metrics of extreme multi-label classification, from ranked labels and true labels.

Each metric is a pure function of a `RankingOutcome`, in [0, 1]. `evaluate` returns the usual table
in percent.

Shapes: N rows, L labels, K ranked labels per row (-1 means "no answer" and is a miss), n rows with
at least one label. Rows without labels are left out and counted in `RankingOutcome.unlabelled`.

Filtered pairs. The public tooling removes them from the predictions only, so a filtered positive
counts as missed although it can never be predicted. Here `ranking_outcome` removes them from the
positives too, and leaves out a row without other positives. If no positive is filtered, as in the
public sets and debian-seealso, both ways agree; moby has 128 filtered positives (22 in test rows).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from service.core.errors import InvalidInput
from training.datasets.propensity import label_frequency

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]

KS, RECALL_KS = (1, 3, 5), (10, 30, 100)
DEEPEST_RANK = max(RECALL_KS)

# Label-frequency segments (above, up to] of RAE-XMC's Table 2, and labels never trained on.
SEGMENTS: Mapping[str, tuple[float, float]] = {
    "head": (1000, np.inf),
    "torso": (100, 1000),
    "tail": (10, 100),
    "xtail": (0, 10),
    "unseen": (-1, 0),
}


@dataclass(frozen=True, kw_only=True, eq=False)
class RankingOutcome:
    """The gains of the ranked labels, for the rows that have a positive.

    A hit gains 1 and a miss 0; `weighted_metrics` uses other gains.
    """

    ranked: NDArray[np.int64]  # [n, K] columns of labels, the best first
    hits: NDArray[Any]  # [n, K] the ranked labels' gains
    positives: csr_matrix  # [n, L] bool
    sizes: NDArray[Any]  # [n], the sum of a row's gains; by default |y|, which is at least 1
    unlabelled: int  # N - n
    best: Floats | None = None  # [n, K] a row's gains in the best order, if not all are 1


def hits(ranked: NDArray[np.integer], positives: csr_matrix) -> Bools:
    """Return [N, K]: whether each ranked label is a positive of its row; -1 is never one."""
    if not positives.nnz:
        return np.zeros(ranked.shape, bool)
    rows = np.arange(ranked.shape[0])[:, None]  # [N, 1]
    relevance = positives[rows, np.maximum(ranked, 0)]
    is_positive: Bools = np.asarray(relevance.todense()) != 0  # [N, K]
    return is_positive & (ranked >= 0)


def labels_to_rank(filtered: csr_matrix, *, deepest: int = DEEPEST_RANK) -> int:
    """Return how many labels to rank per row so that `deepest` remain after filtering."""
    return deepest + int(np.diff(filtered.indptr).max(initial=0))


def unfiltered_positives(positives: csr_matrix, filtered: csr_matrix | None) -> csr_matrix:
    """Return the positives that are not filtered, bool [N, L]."""
    truth = positives != 0
    if filtered is not None and filtered.nnz:
        truth = truth > truth.multiply(filtered)
    truth = csr_matrix(truth)
    truth.eliminate_zeros()
    truth.sort_indices()
    return truth


def unfiltered_first(ranked: NDArray[np.integer], filtered: csr_matrix) -> NDArray[np.int64]:
    """Return `ranked` [N, K] without filtered labels; the others keep their order, then -1."""
    removed = hits(ranked, filtered) | (ranked < 0)
    order = np.argsort(removed, axis=1, kind="stable")
    return np.where(np.take_along_axis(removed, order, axis=1), -1, order)


def ranking_outcome(
    ranked: NDArray[np.integer], positives: csr_matrix, *, filtered: csr_matrix | None = None
) -> RankingOutcome:
    """Compare `ranked` [N, K] with `positives` [N, L]; pairs in `filtered` [N, L] count in neither.

    Raises `InvalidInput` if shapes disagree, or if labels are out of range or repeated in a row.
    """
    _check_ranked(ranked, positives)
    truth = unfiltered_positives(positives, filtered)
    if filtered is not None and filtered.nnz:
        places = unfiltered_first(ranked, filtered)
        ranked = np.where(places < 0, -1, np.take_along_axis(ranked, places, axis=1))
    sizes = np.diff(truth.indptr).astype(np.int64)  # [N]
    labelled = np.flatnonzero(sizes)
    ranked, truth = np.asarray(ranked, dtype=np.int64)[labelled], truth[labelled]
    return RankingOutcome(
        ranked=ranked,
        hits=hits(ranked, truth),
        positives=truth,
        sizes=sizes[labelled],
        unlabelled=len(sizes) - len(labelled),
    )


def precision(outcome: RankingOutcome, *, k: int) -> float:
    """Return P@k, the mean of hits / k."""
    return float(_top(outcome, k).sum(axis=1).mean() / k)


def row_metrics(outcome: RankingOutcome) -> Floats:
    """Return P@1, P@5 and R@100 of each row, [n, 3] in [0, 1]; fewer labels may be ranked."""
    found = [outcome.hits[:, :k].sum(axis=1) for k in (1, 5, DEEPEST_RANK)]
    return np.stack([found[0] / 1.0, found[1] / 5.0, found[2] / outcome.sizes], axis=1)


def recall(outcome: RankingOutcome, *, k: int) -> float:
    """Return R@k, the mean of hits / |y|."""
    return float((_top(outcome, k).sum(axis=1) / outcome.sizes).mean())


def ndcg(outcome: RankingOutcome, *, k: int) -> float:
    """Return nDCG@k: DCG with the discount 1 / log2(rank + 1), divided by the best order's DCG."""
    return float((_top(outcome, k) @ discounts(k) / _ideal(outcome, k)).mean())


def psp(outcome: RankingOutcome, *, inverse_propensities: Floats, k: int) -> float:
    """Return PSP@k: the mean propensity-scored precision divided by the best possible mean."""
    gains, best = _propensity_scored(outcome, inverse_propensities, k)
    return float(gains.sum() / best.sum())


def psndcg(outcome: RankingOutcome, *, inverse_propensities: Floats, k: int) -> float:
    """Return PSnDCG@k: `psp` with discounts, each row divided by its ideal as in `ndcg`."""
    gains, best = _propensity_scored(outcome, inverse_propensities, k)
    weight, ideal = discounts(k), _ideal(outcome, k)
    return float((gains @ weight / ideal).sum() / (best @ weight / ideal).sum())


def label_f1(outcome: RankingOutcome, *, k: int) -> Floats:
    """Return each label's F1 over all rows' top k, [L]; nan for a label without a positive."""
    top_hits = _top(outcome, k)
    labels = outcome.positives.shape[1]
    top = outcome.ranked[:, :k]
    correct = np.bincount(top[top_hits], minlength=labels)
    predicted = np.bincount(top[top >= 0], minlength=labels)
    relevant = label_frequency(outcome.positives)
    f1 = 2.0 * correct / np.maximum(predicted + relevant, 1)
    return np.where(relevant > 0, f1, np.nan)


def macro_f1(outcome: RankingOutcome, *, k: int) -> float:
    """Return macro F1@k: the mean of `label_f1` over the labels with a positive in these rows.

    This set does not depend on the predictions; a mean over all L would add zeros for the others.
    """
    return float(np.nanmean(label_f1(outcome, k=k)))


def macro_f1_by_segment(
    outcome: RankingOutcome, *, train_frequency: NDArray[np.integer], k: int
) -> dict[str, float]:
    """Return macro F1@k of the labels whose training frequency [L] lies in each of `SEGMENTS`.

    A segment in which no label has a positive gets nan.
    """
    f1 = label_f1(outcome, k=k)
    known = ~np.isnan(f1)
    result = {}
    for name, (above, up_to) in SEGMENTS.items():
        inside = known & (train_frequency > above) & (train_frequency <= up_to)
        result[name] = float(f1[inside].mean()) if inside.any() else float("nan")
    return result


def coverage(outcome: RankingOutcome, *, k: int) -> float:
    """Return coverage@k: the share of the labels with a positive here that some top k hits."""
    covered = np.unique(outcome.ranked[:, :k][_top(outcome, k)])
    return len(covered) / len(np.unique(outcome.positives.indices))


def discounts(k: int) -> Floats:
    """Return the discounts 1 / log2(rank + 1) of the ranks from 1 to k, [k]."""
    return 1.0 / np.log2(np.arange(2, k + 2))


def _propensity_scored(
    outcome: RankingOutcome, inverse_propensities: Floats, k: int
) -> tuple[Floats, Floats]:
    """Return the inverse propensities of hits (0 for a miss) and of the best order, both [n, k]."""
    gains = np.where(_top(outcome, k), inverse_propensities[outcome.ranked[:, :k]], 0.0)
    positives = outcome.positives
    return gains, best_gains(positives, inverse_propensities[positives.indices], k=k)


def best_gains(positives: csr_matrix, gains: Floats, *, k: int) -> Floats:
    """Return the k largest gains of each row's labels, descending, [n, k].

    `gains` belong to the entries of `positives` [n, L]. A row with fewer than k labels is padded
    with 0.
    """
    sizes = np.diff(positives.indptr)
    rows = np.repeat(np.arange(len(sizes)), sizes)
    order = np.lexsort((-gains, rows))  # by row, then by descending gain
    place = np.arange(len(order)) - positives.indptr[rows]
    inside = place < k
    best = np.zeros((len(sizes), k))
    best[rows[inside], place[inside]] = gains[order][inside]
    return best


def evaluate(
    ranked: NDArray[np.integer],
    positives: csr_matrix,
    *,
    inverse_propensities: Floats,
    filtered: csr_matrix | None = None,
) -> dict[str, float]:
    """Return `metric_table` for ranked labels [N, K] and the positives [N, L].

    With `filtered`, rank `labels_to_rank` labels, so that enough remain after filtering. Raises
    `InvalidInput` as `ranking_outcome` and `metric_table` do.
    """
    outcome = ranking_outcome(ranked, positives, filtered=filtered)
    return metric_table(outcome, inverse_propensities=inverse_propensities)


def metric_table(outcome: RankingOutcome, *, inverse_propensities: Floats) -> dict[str, float]:
    """Return all metrics in percent, keyed `P@1`, `nDCG@5`, ...

    `rows` counts the rows that were measured, `rows without labels` those left out. Raises
    `InvalidInput` if no row has a label or if too few labels are ranked (pad them with -1).
    """
    if not len(outcome.sizes):
        raise InvalidInput("no row has a label that counts", field="positives")
    table = {f"P@{k}": precision(outcome, k=k) for k in KS}
    table |= {f"nDCG@{k}": ndcg(outcome, k=k) for k in KS}
    weights = inverse_propensities
    table |= {f"PSP@{k}": psp(outcome, inverse_propensities=weights, k=k) for k in KS}
    table |= {f"PSnDCG@{k}": psndcg(outcome, inverse_propensities=weights, k=k) for k in KS}
    table |= {f"R@{k}": recall(outcome, k=k) for k in RECALL_KS}
    table |= {"F1@5": macro_f1(outcome, k=5), "coverage@5": coverage(outcome, k=5)}
    percent = {name: 100.0 * value for name, value in table.items()}
    counts = {"rows": len(outcome.sizes), "rows without labels": outcome.unlabelled}
    return percent | {name: float(count) for name, count in counts.items()}


def _top(outcome: RankingOutcome, k: int) -> NDArray[Any]:
    columns = outcome.hits.shape[1]
    if not 1 <= k <= columns:
        raise InvalidInput(f"k is {k}, but {columns} labels are ranked (pad with -1)", field="k")
    return outcome.hits[:, :k]


def _ideal(outcome: RankingOutcome, k: int) -> Floats:
    """Return the DCG of the best order, [n]: min(k, |y|) hits at the top."""
    if outcome.best is not None:
        return outcome.best[:, :k] @ discounts(k)
    ideal: Floats = np.cumsum(discounts(k))[np.minimum(outcome.sizes, k) - 1]
    return ideal


def _check_ranked(ranked: NDArray[np.integer], positives: csr_matrix) -> None:
    rows, labels = positives.shape
    if ranked.ndim != 2 or len(ranked) != rows or not np.issubdtype(ranked.dtype, np.integer):
        message = f"expected integers [{rows}, k], not {ranked.dtype} {list(ranked.shape)}"
        raise InvalidInput(message, field="ranked")
    if ranked.size and not (ranked.min() >= -1 and ranked.max() < labels):
        raise InvalidInput(f"a label is out of range: -1 to {labels - 1}", field="ranked")
    ordered = np.sort(ranked, axis=1)
    repeated = (ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)
    if repeated.any():
        row = int(np.flatnonzero(repeated.any(axis=1))[0])
        raise InvalidInput(f"row {row} ranks a label twice", field="ranked")

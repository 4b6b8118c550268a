"""The metrics of extreme multi-label classification, from ranked labels and true labels.

Each metric is a pure function of a `RankingOutcome`, in [0, 1]; `evaluate` returns the usual table
in percent.

Shapes: N rows, L labels, K ranked labels a row (-1 stands for "no answer" and is a miss), n rows
that have at least one label; the others are left out and counted in `RankingOutcome.unlabelled`.

Filtered pairs. The public tooling removes them from the predictions only, so that a filtered
positive can never be predicted and yet counts as missed. Here `ranking_outcome` removes them from
the positives too; a row without other positives is left out. Where no positive is filtered, as in
the public sets and in debian-seealso, both ways give the same figures; in moby 128 positives are
filtered, 22 of them in the test rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from service.core.errors import InvalidInput
from training.datasets.propensity import label_frequency

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]

DEEPEST_RANK = 100  # the deepest metric is R@100

# Label-frequency segments of RAE-XMC's Table 2, (above, up to], and labels never trained on.
SEGMENTS: Mapping[str, tuple[float, float]] = {
    "head": (1000, np.inf),
    "torso": (100, 1000),
    "tail": (10, 100),
    "xtail": (0, 10),
    "unseen": (-1, 0),
}


@dataclass(frozen=True, kw_only=True, eq=False)
class RankingOutcome:
    """Which ranked labels are positives, for the rows that have a positive."""

    ranked: NDArray[np.int64]  # [n, K]
    hits: Bools  # [n, K]
    positives: csr_matrix  # [n, L] bool
    sizes: NDArray[np.int64]  # [n], |y|, at least 1
    unlabelled: int  # N - n


def hits(ranked: NDArray[np.integer], positives: csr_matrix) -> Bools:
    """Return [N, K], whether each ranked label is a positive of its row; -1 never is."""
    if not positives.nnz:
        return np.zeros(ranked.shape, bool)
    rows = np.arange(ranked.shape[0])[:, None]  # [N, 1]
    relevance = positives[rows, np.maximum(ranked, 0)]
    is_positive: Bools = np.asarray(relevance.todense()) != 0  # [N, K]
    return is_positive & (ranked >= 0)


def labels_to_rank(filtered: csr_matrix, *, deepest: int = DEEPEST_RANK) -> int:
    """How many labels to rank a row, so that `deepest` remain without its filtered ones [N, L]."""
    return deepest + int(np.diff(filtered.indptr).max(initial=0))


def unfiltered_positives(positives: csr_matrix, filtered: csr_matrix | None) -> csr_matrix:
    """Return bool [N, L], the positives that are not filtered."""
    truth = positives != 0
    if filtered is not None and filtered.nnz:
        truth = truth > truth.multiply(filtered)
    truth = csr_matrix(truth)
    truth.eliminate_zeros()
    truth.sort_indices()
    return truth


def without_filtered(ranked: NDArray[np.integer], filtered: csr_matrix) -> NDArray[np.integer]:
    """Return [N, K]: filtered labels removed, later ones moved up, -1 at the end."""
    removed = hits(ranked, filtered) | (ranked < 0)
    order = np.argsort(removed, axis=1, kind="stable")  # kept labels first, in their order
    kept = np.take_along_axis(ranked, order, axis=1)
    return np.where(np.take_along_axis(removed, order, axis=1), -1, kept)


def ranking_outcome(
    ranked: NDArray[np.integer], positives: csr_matrix, *, filtered: csr_matrix | None = None
) -> RankingOutcome:
    """Compare `ranked` [N, K] with `positives` [N, L]; `filtered` [N, L] pairs count in neither.

    Raises `InvalidInput` for shapes that disagree, labels out of range or repeated in a row.
    """
    _check_ranked(ranked, positives)
    truth = unfiltered_positives(positives, filtered)
    if filtered is not None and filtered.nnz:
        ranked = without_filtered(ranked, filtered)
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


def recall(outcome: RankingOutcome, *, k: int) -> float:
    """Return R@k, the mean of hits / |y|."""
    return float((_top(outcome, k).sum(axis=1) / outcome.sizes).mean())


def ndcg(outcome: RankingOutcome, *, k: int) -> float:
    """Return nDCG@k with gain 1, discount 1 / log2(rank + 1), ideal over min(k, |y|)."""
    return float((_top(outcome, k) @ discounts(k) / _ideal(outcome, k)).mean())


def psp(outcome: RankingOutcome, *, inverse_propensities: Floats, k: int) -> float:
    """Return PSP@k: mean propensity-scored precision over the best possible mean."""
    gains = scored_hits(outcome, inverse_propensities=inverse_propensities, k=k)
    best = best_gains(outcome.positives, inverse_propensities=inverse_propensities, k=k)
    return float(gains.sum() / best.sum())


def psndcg(outcome: RankingOutcome, *, inverse_propensities: Floats, k: int) -> float:
    """Return PSnDCG@k: as `psp`, discounted, each row over its ideal as in `ndcg`."""
    gains = scored_hits(outcome, inverse_propensities=inverse_propensities, k=k)
    best = best_gains(outcome.positives, inverse_propensities=inverse_propensities, k=k)
    weight, ideal = discounts(k), _ideal(outcome, k)
    return float((gains @ weight / ideal).sum() / (best @ weight / ideal).sum())


def label_f1(outcome: RankingOutcome, *, k: int) -> Floats:
    """Return [L], each label's F1 over all rows' top k; nan for a label without a positive."""
    top_hits = _top(outcome, k)
    labels = outcome.positives.shape[1]
    top = outcome.ranked[:, :k]
    correct = np.bincount(top[top_hits], minlength=labels)
    predicted = np.bincount(top[top >= 0], minlength=labels)
    relevant = label_frequency(outcome.positives)
    f1 = 2.0 * correct / np.maximum(predicted + relevant, 1)
    return np.where(relevant > 0, f1, np.nan)


def macro_f1(outcome: RankingOutcome, *, k: int) -> float:
    """Return macro F1@k, the mean of `label_f1` over the labels with a positive in these rows.

    This set does not depend on the predictions; a mean over all L would add zeros for the rest.
    """
    return float(np.nanmean(label_f1(outcome, k=k)))


def macro_f1_by_segment(
    outcome: RankingOutcome,
    *,
    train_frequency: NDArray[np.integer],
    k: int,
    boundaries: Mapping[str, tuple[float, float]] = SEGMENTS,
) -> dict[str, float]:
    """Return macro F1@k of the labels whose training frequency [L] lies in (above, up to].

    nan for a segment in which no label has a positive.
    """
    f1 = label_f1(outcome, k=k)
    known = ~np.isnan(f1)
    result = {}
    for name, (above, up_to) in boundaries.items():
        inside = known & (train_frequency > above) & (train_frequency <= up_to)
        result[name] = float(f1[inside].mean()) if inside.any() else float("nan")
    return result


def coverage(outcome: RankingOutcome, *, k: int) -> float:
    """Return coverage@k: of the labels with a positive here, the share with a hit in the top k."""
    covered = np.unique(outcome.ranked[:, :k][_top(outcome, k)])
    return len(covered) / len(np.unique(outcome.positives.indices))


def discounts(k: int) -> Floats:
    """Return [k], 1 / log2(rank + 1) for ranks from 1."""
    return 1.0 / np.log2(np.arange(2, k + 2))


def scored_hits(outcome: RankingOutcome, *, inverse_propensities: Floats, k: int) -> Floats:
    """Return [n, k], the inverse propensity of each hit, 0 for a miss."""
    return np.where(_top(outcome, k), inverse_propensities[outcome.ranked[:, :k]], 0.0)


def best_gains(positives: csr_matrix, *, inverse_propensities: Floats, k: int) -> Floats:
    """Return [n, k]: the k largest inverse propensities of each row's labels, descending.

    A row with fewer than k labels is padded with 0.
    """
    sizes = np.diff(positives.indptr)
    rows = np.repeat(np.arange(len(sizes)), sizes)
    gains = inverse_propensities[positives.indices]
    order = np.lexsort((-gains, rows))  # by row, then largest first
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
    ks: tuple[int, ...] = (1, 3, 5),
    recall_ks: tuple[int, ...] = (10, 30, 100),
    filtered: csr_matrix | None = None,
) -> dict[str, float]:
    """Return `metric_table` of ranked labels [N, K] and the positives [N, L].

    With `filtered`, rank `labels_to_rank` labels, so that enough remain after the removal.

    Raises `InvalidInput` as `ranking_outcome` and `metric_table` do.
    """
    return metric_table(
        ranking_outcome(ranked, positives, filtered=filtered),
        inverse_propensities=inverse_propensities,
        ks=ks,
        recall_ks=recall_ks,
    )


def metric_table(
    outcome: RankingOutcome,
    *,
    inverse_propensities: Floats,
    ks: tuple[int, ...] = (1, 3, 5),
    recall_ks: tuple[int, ...] = (10, 30, 100),
) -> dict[str, float]:
    """Return all metrics in percent, keyed `P@1`, `nDCG@5`, ...; F1 and coverage at max(ks).

    `rows` and `rows without labels` count the rows that were measured and those left out.

    Raises `InvalidInput` where no row has a label, and where fewer than k labels are ranked: pad
    with -1 if there are no more answers.
    """
    if not len(outcome.sizes):
        raise InvalidInput("no row has a label that counts", field="positives")
    table = {f"P@{k}": precision(outcome, k=k) for k in ks}
    table |= {f"nDCG@{k}": ndcg(outcome, k=k) for k in ks}
    weights = inverse_propensities
    table |= {f"PSP@{k}": psp(outcome, inverse_propensities=weights, k=k) for k in ks}
    table |= {f"PSnDCG@{k}": psndcg(outcome, inverse_propensities=weights, k=k) for k in ks}
    table |= {f"R@{k}": recall(outcome, k=k) for k in recall_ks}
    table |= {f"F1@{max(ks)}": macro_f1(outcome, k=max(ks))}
    table |= {f"coverage@{max(ks)}": coverage(outcome, k=max(ks))}
    percent = {name: 100.0 * value for name, value in table.items()}
    counts = {"rows": len(outcome.sizes), "rows without labels": outcome.unlabelled}
    return percent | {name: float(count) for name, count in counts.items()}


def _top(outcome: RankingOutcome, k: int) -> Bools:
    columns = outcome.hits.shape[1]
    if not 1 <= k <= columns:
        raise InvalidInput(f"k is {k}, but {columns} labels are ranked (pad with -1)", field="k")
    return outcome.hits[:, :k]


def _ideal(outcome: RankingOutcome, k: int) -> Floats:
    """Return [n], the DCG of min(k, |y|) hits at the top."""
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

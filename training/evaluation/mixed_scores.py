"""The scores of several memories for the same queries, normalised and mixed.

    s(l) = sum over memories m of w_m f(p_m(l)),    l in the union of their ranked labels

p_m(l) is the score of label l in memory m (RAE-XMC's Eq. 7), 0 where m does not rank it, and f the
normalisation of a query's scores.

Shapes: n queries, k ranked labels of a memory, r memories, K candidates of a query at most.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from service.core.prediction.many_queries import LabelOrder, RankedLabels
from service.core.types import Doubles, Rows
from training.evaluation.prediction import Ranked

RANK_CONSTANT = 60.0  # of reciprocal rank fusion, as Cormack et al. chose it


def share_of_sum(scores: Doubles) -> Doubles:
    """f(p) = p / sum of p, [n, k]."""
    shares: Doubles = scores / np.maximum(scores.sum(axis=1, keepdims=True), 1e-12)
    return shares


def share_of_best(scores: Doubles) -> Doubles:
    """f(p) = p / max p, [n, k]."""
    shares: Doubles = scores / np.maximum(scores.max(axis=1, keepdims=True, initial=0.0), 1e-12)
    return shares


def root_of_share(scores: Doubles) -> Doubles:
    """f(p) = sqrt(p / sum of p), [n, k]: what few votes say counts more than by its share."""
    roots: Doubles = np.sqrt(share_of_sum(scores))
    return roots


def reciprocal_rank(scores: Doubles) -> Doubles:
    """f(p) = 1 / (60 + rank) of descending scores [n, k] (Cormack et al., SIGIR 2009)."""
    ranks = np.arange(1, scores.shape[1] + 1)
    reciprocal: Doubles = np.where(scores > 0.0, 1.0 / (RANK_CONSTANT + ranks), 0.0)
    return reciprocal


NORMALIZATIONS: Mapping[str, Callable[[Doubles], Doubles]] = {
    "share": share_of_sum,
    "best": share_of_best,
    "root": root_of_share,
    "rank": reciprocal_rank,
}


@dataclass(frozen=True, kw_only=True, eq=False)
class Candidates:
    """The union of the memories' ranked labels of each query, and their normalised scores.

    `labels` [n, K] are in order of label id, -1 at the end where a query has fewer; `scores`
    [r, n, K] are 0 there and where a memory does not rank a label.
    """

    labels: Rows
    scores: Doubles


def union_of(
    rankings: Sequence[RankedLabels], *, normalization: str, order: LabelOrder
) -> Candidates:
    """The candidates of rankings [n, k] each; `normalization` is one of `NORMALIZATIONS`."""
    normalize, labels = NORMALIZATIONS[normalization], len(order.rank_of_label)
    queries = len(rankings[0].labels)
    ranked = [one.labels >= 0 for one in rankings]  # [n, k] each
    # A candidate's number: those of a query lie together, in order of label id.
    numbers = [
        np.nonzero(mask)[0] * labels + order.rank_of_label[one.labels[mask]]
        for one, mask in zip(rankings, ranked, strict=True)
    ]
    distinct, place = np.unique(np.concatenate(numbers), return_inverse=True)
    query, label_rank = np.divmod(distinct, labels)
    counts = np.bincount(query, minlength=queries)
    column = np.arange(len(distinct)) - (np.cumsum(counts) - counts)[query]
    shape = (queries, int(counts.max(initial=0)))
    candidates = Candidates(
        labels=np.full(shape, -1, np.int64), scores=np.zeros((len(rankings), *shape))
    )
    candidates.labels[query, column] = order.label_at_rank[label_rank]
    ends = np.cumsum([len(one) for one in numbers])[:-1]
    for table, one, mask, found in zip(
        candidates.scores, rankings, ranked, np.split(place, ends), strict=True
    ):
        table[query[found], column[found]] = normalize(one.scores)[mask]
    return candidates


def rank_mixed(candidates: Candidates, weights: Sequence[float], *, top_k: int) -> Ranked:
    """The best labels by the mixed score, [n, k]; equal scores in order of label id.

    A label that scores 0, since no memory with a weight ranks it, is not ranked.
    """
    mixed = np.tensordot(np.asarray(weights, np.float64), candidates.scores, axes=1)  # [n, K]
    best = np.argsort(-mixed, axis=1, kind="stable")[:, :top_k]
    labels = np.take_along_axis(candidates.labels, best, axis=1)
    found = np.where(np.take_along_axis(mixed, best, axis=1) > 0.0, labels, -1)
    return np.pad(found, ((0, 0), (0, top_k - found.shape[1])), constant_values=-1)

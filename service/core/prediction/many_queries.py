"""The best labels of many queries at once, for offline evaluation.

`Predictor` answers a few queries, with texts and evidence. This module ranks thousands. Both use
the same equations and order of addition, so labels and scores are equal to the last bit.

Shapes: n queries, b retrieved keys per query at most, m retrieved keys of all queries one after the
other, v votes of these keys, c candidates (one label of one query each), L labels, k ranked labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, Self

import numpy as np

from service.core.memory.part import WeightedVotes
from service.core.prediction.scoring import retriever_distribution, sum_votes, value_weights
from service.core.types import Bools, Doubles, Floats, Indices, Rows


class ValueRows(Protocol):
    """The interface to the rows of V that voting needs; a `View` implements it."""

    def is_instance(self, rows: Rows) -> Bools:
        """Return which of `rows` [m] are instance rows."""
        ...

    def weighted_votes(self, rows: Rows) -> WeightedVotes:
        """Return the labels [v] that `rows` [m] vote for, the count per row, and the weights [v].

        Votes are listed row after row. The weights are None if every vote weighs 1.
        """
        ...


@dataclass(frozen=True, kw_only=True, eq=False)
class LabelOrder:
    """All labels sorted by id, which is the order of labels with equal scores."""

    rank_of_label: Rows  # [L]
    label_at_rank: Rows  # [L]

    @classmethod
    def of(cls, ids: Sequence[str]) -> Self:
        """Sort labels by id; `ids` [L] are given in the order of V's columns."""
        label_at_rank = np.argsort(np.array(ids, object), kind="stable").astype(np.int64)
        rank_of_label = np.empty(len(ids), np.int64)
        rank_of_label[label_at_rank] = np.arange(len(ids))
        return cls(rank_of_label=rank_of_label, label_at_rank=label_at_rank)


@dataclass(frozen=True, kw_only=True, eq=False)
class RankedLabels:
    """The best labels of each query, descending by score; ties are ordered by label id.

    `labels` [n, k] are columns of V, with `scores` [n, k]. If a query has fewer than k candidates,
    the remaining places hold label -1 and score 0.
    """

    labels: Rows
    scores: Doubles


def retriever_distributions(*, similarities: Floats, rows: Rows, tau: float) -> Doubles:
    """Return the softmax over each query's retrieved keys (Eq. 5), [n, b].

    If fewer than b keys were retrieved, `rows` [n, b] end with -1. These places weigh 0.
    """
    weights = np.zeros(rows.shape)
    counts = np.count_nonzero(rows >= 0, axis=1)  # [n]
    # Subtle: numpy adds in pairs, so trailing zeros would change the last bits of a sum. So only
    # queries with equal numbers of keys are summed together.
    for count in np.unique(counts).tolist():
        queries = np.flatnonzero(counts == count)
        weights[queries, :count] = retriever_distribution(
            similarities=similarities[queries, :count], tau=tau
        )
    return weights


def rank_labels(
    memory: ValueRows,
    *,
    rows: Rows,
    weights: Doubles,
    memorization: float,
    top_k: int,
    order: LabelOrder,
) -> RankedLabels:
    """Score the labels that the retrieved keys vote for (Eq. 4 and 7) and rank them.

    `rows` [n, b] are the retrieved keys of each query, -1 for none. `weights` [n, b] are their
    softmax. Memory grows with n x L, so pass a few hundred queries at a time.
    """
    retrieved = rows >= 0
    keys = rows[retrieved]  # [m]
    labels, votes_per_key, vote_weights = memory.weighted_votes(keys)
    query_of_vote = np.repeat(np.nonzero(retrieved)[0], votes_per_key)  # [v]
    # Candidates are numbered so that those of a query are adjacent, in order of label id.
    numbers = query_of_vote * len(order.rank_of_label) + order.rank_of_label[labels]
    candidates, candidate_of_vote = _distinct(numbers, below=len(rows) * len(order.rank_of_label))
    scores = sum_votes(
        weights=value_weights(
            weights=weights[retrieved],
            is_instance=memory.is_instance(keys),
            memorization=memorization,
        ),
        votes_per_key=votes_per_key,
        vote_weights=vote_weights,
        group_of_vote=candidate_of_vote,
        groups=len(candidates),
    )
    if vote_weights is not None:  # negative pairs may push a sum below 0
        candidates, scores = candidates[scores >= 0], scores[scores >= 0]
    query, label_rank = np.divmod(candidates, max(1, len(order.rank_of_label)))
    best, place = _best(scores, np.bincount(query, minlength=len(rows)), top_k=top_k)
    ranked = RankedLabels(
        labels=np.full((len(rows), top_k), -1, np.int64), scores=np.zeros((len(rows), top_k))
    )
    ranked.labels[query[best], place] = order.label_at_rank[label_rank[best]]
    ranked.scores[query[best], place] = scores[best]
    return ranked


def _distinct(numbers: Rows, *, below: int) -> tuple[Rows, Indices]:
    """Return what `np.unique` with its inverse returns, using a table instead of a sort."""
    seen = np.zeros(below, bool)
    seen[numbers] = True
    distinct = np.flatnonzero(seen)
    position = np.empty(below, np.int32)  # only entries of `distinct` are written and read
    position[distinct] = np.arange(len(distinct), dtype=np.int32)
    return distinct, position[numbers]


def _best(scores: Doubles, counts: Rows, *, top_k: int) -> tuple[Rows, Rows]:
    """Return the best candidates of each query, and the place 0..top_k of each in its ranking.

    `scores` [c] are listed query by query, `counts` [n] per query. Ties keep their order.
    """
    width = int(counts.max(initial=0))
    inside = np.arange(width) < counts[:, None]  # [n, width]
    table = np.full(inside.shape, -np.inf)
    table[inside] = scores
    if width > top_k:  # as in `best_candidates`, because sorting all candidates takes longer
        cut = width - top_k
        inside &= table >= np.partition(table, cut, axis=1)[:, cut, None]
    query, column = np.nonzero(inside)
    by_score = np.lexsort((-table[inside], query))  # stable; the last key is the primary one
    query, column = query[by_score], column[by_score]
    first_candidate = np.cumsum(counts) - counts  # [n]
    kept_before = np.cumsum(np.count_nonzero(inside, axis=1)) - np.count_nonzero(inside, axis=1)
    place = np.arange(len(query)) - kept_before[query]
    kept = place < top_k
    return (first_candidate[query] + column)[kept], place[kept]

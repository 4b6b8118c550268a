"""The equations of RAE-XMC's prediction, each as one pure function.

Source: Chang et al., "Retrieval-Augmented Encoders for Extreme Multi-label Text Classification".

Shapes: b retrieved keys of one query, in descending similarity; v votes of these keys for labels,
key after key.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from service.core.types import Bools, Doubles, Floats, Indices, Rows

# With at least one vote per this many columns, filling a table over all columns is faster. With
# fewer votes, as in a large bundle, a search among sorted columns is faster.
TABLE_ENTRIES_A_VOTE = 32


def retriever_distribution(*, similarities: Floats, tau: float) -> Doubles:
    """Return the softmax of the keys' similarities at temperature tau (Eq. 5, top b only).

    Takes the similarities of one query [b] or of several [..., b], and returns the same shape.
    Similarities are inner products of unit vectors. If an index returns squared L2 distances,
    convert them first (s = 1 - distance / 2). Otherwise the temperature would be tau / 2.
    """
    if similarities.shape[-1] == 0:
        return np.zeros(similarities.shape)
    logits = similarities.astype(np.float64) / tau
    weights = np.exp(logits - np.maximum.reduce(logits, axis=-1, keepdims=True))
    return np.asarray(weights / np.add.reduce(weights, axis=-1, keepdims=True))


def value_weights(*, weights: Doubles, is_instance: Bools, memorization: float) -> Doubles:
    """Scale each key's weight by its block of V = [lambda Y; (1 - lambda) I] (Eq. 4)."""
    return np.where(is_instance, memorization, 1.0 - memorization) * weights  # [b]


def predictive_scores(
    *,
    weights: Doubles,
    labels: Indices,
    votes_per_key: NDArray[np.int64],
    vote_weights: Floats | None = None,
) -> tuple[Indices, Doubles]:
    """Return the sparse product p = w V (Eq. 7) of one query: distinct labels, and their scores.

    `labels` [v] are the labels that the b keys vote for, `votes_per_key` [b] counts them per key,
    and `vote_weights` [v] are the entries of V (None: all are 1). Returned labels are ascending.
    """
    distinct, group_of_vote = np.unique(labels, return_inverse=True)
    scores = sum_votes(
        weights=weights,
        votes_per_key=votes_per_key,
        vote_weights=vote_weights,
        group_of_vote=group_of_vote,
        groups=len(distinct),
    )
    return distinct, scores


def sum_votes(
    *,
    weights: Doubles,
    votes_per_key: NDArray[np.int64],
    group_of_vote: NDArray[np.integer],
    groups: int,
    vote_weights: Floats | None = None,
) -> Doubles:
    """Sum the votes of each group, [groups].

    A vote weighs as much as its key, times its entry in `vote_weights` [v] if given.
    `group_of_vote` [v] is the group of each vote. Equal input gives equal bits.
    """
    votes = np.repeat(weights, votes_per_key)  # [v]
    if vote_weights is not None:
        votes = votes * vote_weights
    return np.bincount(group_of_vote, weights=votes, minlength=groups).astype(np.float64)


def best_candidates(*, scores: Doubles, top_k: int) -> Rows:
    """Return the positions of the top_k scores, and of all that tie with the last of these."""
    if len(scores) <= top_k:
        return np.arange(len(scores))
    threshold = np.partition(scores, len(scores) - top_k)[len(scores) - top_k]
    return np.flatnonzero(scores >= threshold)


def places(labels: Indices, *, among: Sequence[int] | Indices | Rows) -> Rows:
    """Return the place of each of `labels` [v] in the columns `among` [k], or -1."""
    columns = np.asarray(among, np.int64)
    if len(columns) == 0 or len(labels) == 0:
        return np.full(len(labels), -1, np.int64)
    size = max(int(labels.max()), int(columns.max())) + 1
    if size <= TABLE_ENTRIES_A_VOTE * len(labels):
        place_of = np.full(size, -1, np.int64)
        place_of[columns] = np.arange(len(columns))
        return place_of[labels]
    ascending = np.argsort(columns, kind="stable")
    ordered = columns[ascending]
    place = np.minimum(np.searchsorted(ordered, labels), len(ordered) - 1)
    return np.where(ordered[place] == labels, ascending[place], -1)

"""The equations of RAE-XMC's prediction, one pure function each.

Source: Chang et al., "Retrieval-Augmented Encoders for Extreme Multi-label Text Classification".

Shapes: b retrieved keys of one query, in descending similarity; v votes, the labels that these keys
vote for, one key after the other.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from service.core.types import Bools, Doubles, Floats, Indices, Rows


def retriever_distribution(*, similarities: Floats, tau: float) -> Doubles:
    """Softmax over the retrieved keys' similarities at temperature tau (Eq. 5, top b only).

    Takes the similarities of one query [b], or of several [..., b], and returns the same shape.
    Similarities are inner products of unit vectors. An index that returns squared L2 distances
    must convert them first (s = 1 - distance / 2), or the temperature would be tau / 2.
    """
    if similarities.shape[-1] == 0:
        return np.zeros(similarities.shape)
    logits = similarities.astype(np.float64) / tau
    weights = np.exp(logits - np.maximum.reduce(logits, axis=-1, keepdims=True))
    return np.asarray(weights / np.add.reduce(weights, axis=-1, keepdims=True))


def value_weights(*, weights: Doubles, is_instance: Bools, memorization: float) -> Doubles:
    """Scale each key by its block of V = [lambda Y; (1 - lambda) I] (Eq. 4)."""
    return np.where(is_instance, memorization, 1.0 - memorization) * weights  # [b]


def predictive_scores(
    *,
    weights: Doubles,
    labels: Indices,
    votes_per_key: NDArray[np.int64],
    vote_weights: Floats | None = None,
) -> tuple[Indices, Doubles]:
    """The sparse product p = w V (Eq. 7) of one query.

    `labels` [v] are the labels that the b keys vote for, one key after the other, `votes_per_key`
    [b] says how many each key has, and `vote_weights` [v] are the entries of V (None: all are 1).
    Returns the distinct labels, ascending, and their scores.
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
    """Sum the votes of each group, [groups]; a vote weighs what its key weighs.

    `vote_weights` [v], where given, multiply that: they are the entries of V.
    `group_of_vote` [v] says which score each vote adds to. Votes are added in their order, so equal
    input gives equal bits.
    """
    votes = np.repeat(weights, votes_per_key)  # [v]
    if vote_weights is not None:
        votes = votes * vote_weights
    return np.bincount(group_of_vote, weights=votes, minlength=groups).astype(np.float64)


def best_candidates(*, scores: Doubles, top_k: int) -> Rows:
    """Positions of the top_k scores and of everything that ties with the last of them."""
    if len(scores) <= top_k:
        return np.arange(len(scores))
    threshold = np.partition(scores, len(scores) - top_k)[len(scores) - top_k]
    return np.flatnonzero(scores >= threshold)

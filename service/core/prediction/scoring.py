"""The equations of RAE-XMC's prediction, one pure function each.

Source: Chang et al., "Retrieval-Augmented Encoders for Extreme Multi-label Text Classification".

Shapes: b retrieved keys of one query, in descending similarity; n votes, the labels of all of
them one after the other.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from service.core.types import Bools, Doubles, Floats, Indices, Rows


def retriever_distribution(*, similarities: Floats, tau: float) -> Doubles:
    """Softmax over the retrieved keys' similarities at temperature tau (Eq. 5, top b only).

    Similarities are inner products of unit vectors. An index that returns squared L2 distances
    must convert them first (s = 1 - distance / 2), or the temperature would be tau / 2.
    """
    if len(similarities) == 0:
        return np.zeros(0)
    logits = similarities.astype(np.float64) / tau  # [b]
    weights = np.exp(logits - logits.max())
    return np.asarray(weights / weights.sum())


def value_weights(*, weights: Doubles, is_instance: Bools, memorization: float) -> Doubles:
    """Scale each key by its block of V = [lambda Y; (1 - lambda) I] (Eq. 4)."""
    return np.where(is_instance, memorization, 1.0 - memorization) * weights  # [b]


def predictive_scores(
    *, weights: Doubles, labels: Indices, votes_per_key: NDArray[np.int64]
) -> tuple[Indices, Doubles]:
    """The sparse product p = w V (Eq. 7) of one query.

    `labels` [n] lists the value rows of the b keys one after the other, `votes_per_key` [b] says
    how many belong to each. Returns the distinct labels, ascending, and their scores. Votes are
    added in the order of the keys, so equal input gives equal bits.
    """
    distinct, position = np.unique(labels, return_inverse=True)
    votes = np.repeat(weights, votes_per_key)  # [n]
    scores = np.bincount(position, weights=votes, minlength=len(distinct)).astype(np.float64)
    return distinct, scores


def best_candidates(*, scores: Doubles, top_k: int) -> Rows:
    """Positions of the top_k scores and of everything that ties with the last of them."""
    if len(scores) <= top_k:
        return np.arange(len(scores))
    threshold = np.partition(scores, len(scores) - top_k)[len(scores) - top_k]
    return np.flatnonzero(scores >= threshold)

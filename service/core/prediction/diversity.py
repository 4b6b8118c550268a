"""Maximal marginal relevance: keywords that are relevant, and unlike those before them.

Source: Carbonell and Goldstein (1998), "The Use of MMR, Diversity-Based Reranking for Reordering
Documents and Producing Summaries".

Shapes: n ranked labels, d dimensions.
"""

from __future__ import annotations

import numpy as np

from service.core.types import Doubles, Floats


def maximal_marginal_relevance(
    scores: Doubles, keys: Floats, *, diversity: float, count: int
) -> list[int]:
    """Return the places of at most `count` labels, in the order in which they are chosen.

    `scores` [n] are descending and at least 0, `keys` [n, d] are unit vectors. Each next label has
    the greatest (1 - diversity) * relevance - diversity * similarity: its score as a share of the
    best one, and its greatest cosine to a label that was chosen before. The first of equally good
    ones wins.
    """
    if not len(scores):
        return []
    relevance = scores / max(float(scores[0]), np.finfo(np.float64).tiny)
    chosen = [0]
    nearest = keys @ keys[0]  # [n], to the labels chosen so far
    while len(chosen) < min(count, len(scores)):
        gain = (1.0 - diversity) * relevance - diversity * nearest
        gain[chosen] = -np.inf
        chosen.append(int(np.argmax(gain)))
        nearest = np.maximum(nearest, keys @ keys[chosen[-1]])
    return chosen

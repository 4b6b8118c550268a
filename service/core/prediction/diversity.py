"""Maximal marginal relevance: keywords that are relevant, and unlike those before them.

Source: Carbonell and Goldstein (1998), "The Use of MMR, Diversity-Based Reranking for Reordering
Documents and Producing Summaries".

Shapes: n ranked labels, d dimensions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from service.core.prediction.ranking import Query, Ranking
from service.core.types import Doubles, Floats

MOST_DIVERSE = 100  # labels of one query among which diversity chooses


@dataclass(frozen=True, slots=True)
class Diverse:
    """Puts labels that are like better ones later."""

    diversity: float  # 0: by score alone; 1: each next label is the one least like others

    def wants(self, count: int) -> int:
        """Return the number of labels to choose from."""
        return max(count, MOST_DIVERSE)

    def apply(self, ranking: Ranking, query: Query, count: int) -> Ranking:
        """Return the `count` labels with the greatest marginal relevance, in this order."""
        columns = np.array(ranking.columns, np.int64)
        keys = query.view.label_keys(columns).astype(np.float32)
        scores = np.array(ranking.scores, np.float64)
        if ranking.boosts:
            scores *= np.array(ranking.boosts)
        chosen = maximal_marginal_relevance(scores, keys, diversity=self.diversity, count=count)
        return ranking.only(chosen)


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

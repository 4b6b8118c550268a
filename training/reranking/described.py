"""The candidates of queries with all their features, as the service computes them.

Shapes: n queries, M ranked pairs, m of them candidates, F features.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from service.core.prediction.reranking.features import FEATURES, features_of
from service.core.prediction.reranking.many_queries import candidates_of
from service.core.prediction.reranking.text_overlap import WordRarity, open_compare
from service.core.types import Bools, Doubles, Floats
from training.evaluation.prediction import Ranked
from training.reranking.item_features import Items, item_features
from training.reranking.pairs import Pairs, entries, pairs_of
from training.reranking.queries import Queries


@dataclass(frozen=True, kw_only=True, eq=False)
class Described:
    """Queries, the pairs that are ranked for them, and `features` [m, F] of the candidates."""

    queries: Queries
    pairs: Pairs
    is_candidate: Bools  # [M]
    names: tuple[str, ...]  # [F]
    features: Floats

    @cached_property
    def candidates(self) -> Pairs:
        """The pairs that have features."""
        return self.pairs.only(self.is_candidate)

    @cached_property
    def positive(self) -> Bools:
        """Whether each candidate is relevant, [m]."""
        positive: Bools = entries(self.queries.positives != 0, self.candidates) != 0
        return positive

    @cached_property
    def counted(self) -> Bools:
        """Whether each candidate counts, [m]: filtered ones do not."""
        counted: Bools = entries(self.queries.filtered != 0, self.candidates) == 0
        return counted

    def ranked_by_votes(self) -> Ranked:
        """The memory's own order."""
        return self._ranked(self.pairs.votes)

    def ranked_by(self, sums: Doubles) -> Ranked:
        """The best labels of each query by the sums of trees of its candidates [m].

        The labels behind them follow in the memory's order.
        """
        scores = np.empty(len(self.pairs))
        scores[self.is_candidate] = sums
        ranks = self.pairs.ranks[~self.is_candidate]
        scores[~self.is_candidate] = sums.min(initial=0.0) - 1.0 - ranks
        return self._ranked(scores)

    def _ranked(self, scores: Doubles) -> Ranked:
        order = self.queries.labels.memory.label_order
        return self.pairs.ranked_by(scores, top_k=self.queries.top_k, order=order)


def describe(
    queries: Queries, rarity: WordRarity, *, candidates: int, items: Items | None = None
) -> Described:
    """The `candidates` best labels of each query, described; with `items`, by these as well."""
    ranked, compare = queries.ranked(max(candidates, queries.top_k)), open_compare()
    pairs = pairs_of(ranked)
    is_candidate = pairs.ranks < candidates
    found = [np.zeros((0, len(FEATURES)), np.float32)]
    for one in candidates_of(queries.texts, queries.vectors, queries.retrieved, ranked):
        best = one.first(candidates)
        if len(best.columns):
            found.append(features_of(best, queries.labels, rarity=rarity, compare=compare))
    features, names = np.concatenate(found), FEATURES
    if items is not None:
        of_items = item_features(items, queries.labels.memory.labels_of, pairs.only(is_candidate))
        columns = [values.astype(np.float32)[:, None] for values in of_items.values()]
        features, names = np.hstack([features, *columns]), (*FEATURES, *of_items)
    return Described(
        queries=queries, pairs=pairs, is_candidate=is_candidate, names=names, features=features
    )

"""Ranks the memory's best labels of a query a second time, by trees that read more than votes.

Trees that were learned to rank (LambdaMART; Burges, 2010) read `features` of each candidate. Their
sum becomes a probability, so scores of different queries can be compared with one threshold.

Shapes: k candidates of a query, n ranked labels of it (n >= k), L labels of the bundle.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from service.core.bundle.bundle import Bundle
from service.core.bundle.manifest import RerankerFacts
from service.core.bundle.reranker_files import RerankerFiles
from service.core.errors import BundleUnsupported
from service.core.memory.view import View
from service.core.prediction.ranking import Ranking, in_order
from service.core.prediction.reranking.candidate_labels import (
    CandidateLabels,
    LabelsOfView,
    trained_frequencies,
)
from service.core.prediction.reranking.features import FEATURES, Candidates, features_of
from service.core.prediction.reranking.text_overlap import WordRarity, open_compare
from service.core.prediction.reranking.trees import OnnxTrees, Trees
from service.core.types import Doubles, Floats, Indices

_MOST = 500.0  # of a logit, whose exponential is still a number


class Reranker:
    """The trees of a bundle with what they read; changes nothing, so threads may share it."""

    def __init__(
        self, facts: RerankerFacts, *, trees: Trees, rarity: WordRarity, trained: Indices
    ) -> None:
        """Rank by `trees`; `rarity` and `trained` [L] are of words and labels in training.

        Raises `BundleUnsupported` for trees that read other features than this version has.
        """
        if tuple(facts.features) != FEATURES:
            unknown = sorted(set(facts.features) ^ set(FEATURES)) or "their order"
            raise BundleUnsupported(
                f"the second ranking reads other features than this version has ({unknown}):"
                " learn it again (python -m training rerank)"
            )
        self._facts, self._trees, self._rarity = facts, trees, rarity
        self._trained, self._compare = trained, open_compare()

    @property
    def facts(self) -> RerankerFacts:
        """How many candidates there are, and how a sum of trees becomes a probability."""
        return self._facts

    def labels_of(self, view: View) -> LabelsOfView:
        """What the trees read of a view's labels."""
        return LabelsOfView(view=view, trained=self._trained)

    def rerank(
        self, view: View, query: str, vector: Floats, first: Ranking, *, top_k: int
    ) -> Ranking:
        """Rank the labels of `first` [n] again; `vector` [d] is the one that was searched."""
        candidates = Candidates(
            query=query,
            vector=vector,
            columns=np.array(first.columns, np.int64),
            scores=np.array(first.scores, np.float64),
            rows=first.rows,
            similarities=first.similarities,
        )
        scores = self.scores(candidates, self.labels_of(view))
        columns, best = in_order(first.columns, scores.tolist(), labels=view.labels, top_k=top_k)
        votes = dict(zip(first.columns, first.scores, strict=True))
        return replace(
            first, columns=columns, scores=best, votes=[votes[column] for column in columns]
        )

    def scores(self, ranked: Candidates, labels: CandidateLabels) -> Doubles:
        """The new scores [n] of the labels that a memory ranks first for a query.

        The first k are candidates: theirs are probabilities. Those of labels behind them are
        smaller, and have the ratios of the memory's scores.
        """
        best = ranked.first(self._facts.candidates)
        if not len(best.columns):
            return np.zeros(0)
        features = features_of(best, labels, rarity=self._rarity, compare=self._compare)
        slope, intercept = self._facts.slope, self._facts.intercept
        sums = self._trees.scores(features)
        return continued(probabilities(sums, slope=slope, intercept=intercept), ranked.scores)


def probabilities(sums: Doubles, *, slope: float, intercept: float) -> Doubles:
    """What sums of trees [k] say of relevance (Platt scaling), [k]."""
    logits = np.clip(slope * sums + intercept, -_MOST, _MOST)
    found: Doubles = 1.0 / (1.0 + np.exp(-logits))
    return found


def continued(scores: Doubles, votes: Doubles) -> Doubles:
    """Scores [k] of candidates, continued for labels that the memory ranks behind them, [n].

    `votes` [n] are the memory's scores, descending.
    """
    candidates = len(scores)
    if candidates == len(votes):
        return scores
    last = votes[candidates - 1]
    shares = votes[candidates:] / last if last > 0.0 else np.zeros(len(votes) - candidates)
    return np.concatenate([scores, scores.min() * shares])


def open_reranker(bundle: Bundle) -> Reranker | None:
    """The second ranking of a bundle, None where it has none.

    Raises `BundleAltered` or `BundleUnsupported` for one that does not fit.
    """
    if bundle.reranker is None:
        return None
    return reranker_of(bundle.reranker, trained=trained_frequencies(bundle))


def reranker_of(files: RerankerFiles, *, trained: Indices) -> Reranker:
    """The second ranking of files over labels of these frequencies [L]; raises the same."""
    return Reranker(
        files.facts,
        trees=OnnxTrees(files.trees, features=len(FEATURES)),
        rarity=WordRarity(
            hashes=np.asarray(files.words),
            rarity=np.asarray(files.rarity),
            unknown=files.facts.unknown_rarity,
        ),
        trained=trained,
    )

"""The reranker: trees that read more than the votes reorder a query's best labels.

The trees were trained to rank (LambdaMART; Burges, 2010) and read the `features` of each candidate.
Their sum becomes a probability, so one threshold fits the scores of all queries.

Shapes: k candidates and n ranked labels of a query (n >= k), F features, L labels of the bundle.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from service.core.bundle.bundle import Bundle
from service.core.bundle.manifest import RerankerFacts
from service.core.bundle.reranker_files import RerankerFiles
from service.core.encoding.onnx_session import open_session
from service.core.errors import BundleAltered, BundleUnsupported
from service.core.memory.view import View
from service.core.prediction.ranking import Query, Ranking, in_order
from service.core.prediction.reranking.features import (
    FEATURES,
    CandidateLabels,
    Candidates,
    LabelsOfView,
    features_of,
    trained_frequencies,
)
from service.core.prediction.reranking.text_overlap import TextComparison, WordRarity
from service.core.types import Doubles, Floats, Indices

INPUT, OUTPUT = "features", "scores"
_MOST = 500.0  # the largest logit; its exponential is finite


class OnnxTrees:
    """An ensemble of regression trees: one `TreeEnsembleRegressor`, one thread per call."""

    def __init__(self, path: Path, *, features: int) -> None:
        """Load the graph; raises `BundleAltered` if it is not a graph or reads other features."""
        self._session = open_session(path)
        shapes = {one.name: one.shape for one in self._session.get_inputs()}
        if INPUT not in shapes or shapes[INPUT][-1] != features:
            raise BundleAltered(f"{path} does not read {INPUT} [k, {features}], but {shapes}")

    def scores(self, features: Floats) -> Doubles:
        """Return the sum of all trees for each candidate [k], given features [k, F]."""
        found = self._session.run([OUTPUT], {INPUT: features})[0]
        return np.asarray(found, np.float64).ravel()


class Reranker:
    """A bundle's trees and their inputs. It has no state, so threads may share it."""

    def __init__(
        self, facts: RerankerFacts, *, trees: OnnxTrees, rarity: WordRarity, trained: Indices
    ) -> None:
        """Rank by `trees`; `trained` [L] are the `trained_frequencies` of the bundle's labels.

        Raises `BundleUnsupported` if the trees read features that this version does not have.
        """
        if tuple(facts.features) != FEATURES:
            unknown = sorted(set(facts.features) ^ set(FEATURES)) or "their order"
            raise BundleUnsupported(
                f"the reranker reads other features than this version has ({unknown}):"
                " learn it again (keymatch lab rerank)"
            )
        self._facts, self._trees, self._rarity = facts, trees, rarity
        self._trained, self._compare = trained, TextComparison()

    @property
    def facts(self) -> RerankerFacts:
        """The number of candidates, and how the sum of all trees becomes a probability."""
        return self._facts

    def labels_of(self, view: View) -> LabelsOfView:
        """Return a view's labels in the form that features are computed from."""
        return LabelsOfView(view=view, trained=self._trained)

    def rerank(
        self, view: View, query: str, vector: Floats, first: Ranking, *, top_k: int
    ) -> Ranking:
        """Rank the labels of `first` [n] again; `vector` [d] is the query's vector as searched."""
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
        return first._replace(
            columns=columns,
            scores=best,
            places=range(len(best)),
            best_score=max(best, default=0.0),
            score_kind="probability",
            votes=[votes[column] for column in columns],
        )

    def scores(self, ranked: Candidates, labels: CandidateLabels) -> Doubles:
        """Return new scores [n] for the labels that the memory ranks first for a query.

        The first k labels, the candidates, get probabilities. The labels after them get smaller
        scores, in the proportions of the memory's scores.
        """
        best = ranked.first(self._facts.candidates)
        if not len(best.columns):
            return np.zeros(0)
        features = features_of(best, labels, rarity=self._rarity, compare=self._compare)
        slope, intercept = self._facts.slope, self._facts.intercept
        sums = self._trees.scores(features)
        return continued(probabilities(sums, slope=slope, intercept=intercept), ranked.scores)


@dataclass(frozen=True, slots=True)
class Reranked:
    """Ranks the best labels again, by the probabilities of a reranker."""

    reranker: Reranker
    candidates: int

    def wants(self, count: int) -> int:
        """Return the number of labels to rank."""
        return max(count, self.candidates)

    def apply(self, ranking: Ranking, query: Query, count: int) -> Ranking:
        """Return the `count` best labels by their probability, times their boost."""
        boosts = query.view.labels.boosts
        with query.watch.stage("rerank"):
            ranking = self.reranker.rerank(
                query.view,
                query.reading.text,
                query.vector,
                ranking.by_score(),
                top_k=len(ranking.columns) if len(boosts) else count,
            )
        return ranking.boosted(boosts).first(count)


def probabilities(sums: Doubles, *, slope: float, intercept: float) -> Doubles:
    """Return the probabilities of relevance [k] for the sums of all trees [k] (Platt scaling)."""
    logits = np.clip(slope * sums + intercept, -_MOST, _MOST)
    found: Doubles = 1.0 / (1.0 + np.exp(-logits))
    return found


def continued(scores: Doubles, votes: Doubles) -> Doubles:
    """Extend the candidates' scores [k] to all labels [n] that the memory ranks.

    `votes` [n] are the memory's scores, descending.
    """
    candidates = len(scores)
    if candidates == len(votes):
        return scores
    last = votes[candidates - 1]
    shares = votes[candidates:] / last if last > 0.0 else np.zeros(len(votes) - candidates)
    return np.concatenate([scores, scores.min() * shares])


def open_reranker(bundle: Bundle) -> Reranker | None:
    """Open the bundle's reranker; returns None if it has none.

    Raises `BundleAltered` or `BundleUnsupported` if the reranker does not fit.
    """
    if bundle.reranker is None:
        return None
    return reranker_of(bundle.reranker, trained=trained_frequencies(bundle))


def reranker_of(files: RerankerFiles, *, trained: Indices) -> Reranker:
    """Open the reranker in `files`; raises as `open_reranker`.

    `trained` [L] are the `trained_frequencies` of the labels.
    """
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

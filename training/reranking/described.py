"""Candidates of a run's queries with all their features.

Shapes: n rows, m candidates, F features.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from service.core.types import Doubles
from training.combining.runs import FinishedRun
from training.evaluation.metrics import labels_to_rank
from training.evaluation.prediction import Ranked
from training.experiments.sweeps import Scoring
from training.reranking.candidates import PER_QUERY, Candidates, Queries, candidates_of
from training.reranking.memory_features import memory_features
from training.reranking.text_features import text_features
from training.reranking.trees import Features
from training.selection.memory_choices import DEPTHS
from training.selection.validation import HeldOutRetrieval


@dataclass(frozen=True, kw_only=True, eq=False)
class Described:
    """Queries, their candidates, and a column of `features` [m, F] for each name."""

    queries: Queries
    candidates: Candidates
    names: tuple[str, ...]
    features: Features

    def ranked_by(self, scores: Doubles) -> Ranked:
        """The best labels of each query by scores [m], as many as the metrics need."""
        return self.candidates.ranked_by(scores, top_k=labels_to_rank(self.queries.filtered))


def describe(queries: Queries, scoring: Scoring) -> Described:
    """The best labels by the run's own settings, but as deep as may be chosen, described."""
    choices = replace(scoring.choices, depth=max(*DEPTHS, scoring.choices.depth))
    count = labels_to_rank(queries.filtered, deepest=PER_QUERY)
    candidates = candidates_of(queries, choices, per_query=count)
    features = memory_features(queries, candidates)
    features |= text_features(queries.texts, scoring.dataset.labels.texts, candidates)
    return Described(
        queries=queries,
        candidates=candidates,
        names=tuple(features),
        features=np.stack([value.astype(np.float32) for value in features.values()], axis=1),
    )


def held_out_queries(run: FinishedRun, held: HeldOutRetrieval, scoring: Scoring) -> Queries:
    """The rows that the run holds out."""
    rows = run.slices.held_out
    texts = run.dataset.train.instances.texts
    return Queries(
        texts=[texts[row] for row in rows.tolist()],
        vectors=scoring.memory.keys[rows].astype(np.float32),
        memory=held.memory,
        retrieved=held.retrieved,
        positives=held.positives,
        filtered=held.filtered,
    )


def test_queries(scoring: Scoring) -> Queries:
    """The test rows."""
    test = scoring.dataset.test
    return Queries(
        texts=test.instances.texts,
        vectors=scoring.queries,
        memory=scoring.memory,
        retrieved=scoring.retrieved,
        positives=test.labels_of,
        filtered=test.filtered,
    )

"""Candidates of a run's queries with all their features.

Shapes: n rows, m candidates, F features.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from service.core.types import Doubles
from training.combining.runs import FinishedRun
from training.datasets.dataset import Dataset
from training.evaluation.metrics import labels_to_rank
from training.evaluation.prediction import Ranked
from training.experiments.sweeps import Scoring
from training.reranking.candidates import PER_QUERY, Candidates, Queries, candidates_of
from training.reranking.item_features import Items, item_features
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


def describe(queries: Queries, scoring: Scoring, items: Items | None = None) -> Described:
    """The best labels by the run's own settings, but as deep as may be chosen, described.

    With `items`, by these as well.
    """
    choices = replace(scoring.choices, depth=max(*DEPTHS, scoring.choices.depth))
    count = labels_to_rank(queries.filtered, deepest=PER_QUERY)
    candidates = candidates_of(queries, choices, per_query=count)
    features = memory_features(queries, candidates)
    features |= text_features(queries.texts, scoring.dataset.labels.texts, candidates)
    if items is not None:
        features |= item_features(items, queries.memory.labels_of, candidates)
    return Described(
        queries=queries,
        candidates=candidates,
        names=tuple(features),
        features=np.stack([value.astype(np.float32) for value in features.values()], axis=1),
    )


def queries_held_out(run: FinishedRun, held: HeldOutRetrieval, scoring: Scoring) -> Queries:
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


def queries_of_test(scoring: Scoring) -> Queries:
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


def items_held_out(run: FinishedRun) -> Items:
    """The items of the held-out rows, of labels, and of the rows of their memory."""
    of_rows, slices = run.dataset.train.metadata_of, run.slices
    assert of_rows is not None
    return Items(
        queries=of_rows[slices.held_out],
        labels=run.dataset.label_metadata,
        instances=of_rows[slices.kept],
    )


def items_of_test(dataset: Dataset) -> Items:
    """The items of the test rows, of labels, and of all training rows."""
    return Items(
        queries=dataset.test.metadata_of,
        labels=dataset.label_metadata,
        instances=dataset.train.metadata_of,
    )

"""Queries with what they retrieved from a run's memory, and the labels that it ranks for them.

Shapes: n queries, N rows of the memory, L labels, d dimensions, b retrieved keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.sparse import csr_matrix

from service.core.memory.part import WeightedVotes
from service.core.prediction.many_queries import RankedLabels
from service.core.types import Bools, Floats, Halves, Rows
from training.checkpoints.choices import Choices
from training.combining.runs import FinishedRun
from training.datasets.propensity import label_frequency
from training.evaluation.metrics import labels_to_rank
from training.evaluation.prediction import Neighbours, OfflineMemory, predict
from training.experiments.sweeps import Scoring
from training.selection.validation import HeldOutRetrieval


@dataclass(frozen=True, kw_only=True, eq=False)
class LabelsOfMemory:
    """What the second ranking reads of a memory without a bundle; see `CandidateLabels`."""

    memory: OfflineMemory
    texts: Sequence[str]  # [L], of the labels

    def is_instance(self, rows: Rows) -> Bools:
        """Which of `rows` [m] are instance rows."""
        return self.memory.is_instance(rows)

    def weighted_votes(self, rows: Rows) -> WeightedVotes:
        """The labels that `rows` [m] vote for, how many each row has, and the votes' weights."""
        return self.memory.weighted_votes(rows)

    def keys_of(self, columns: Rows) -> Halves:
        """The keys [k, d] of labels."""
        return self.memory.keys[self.memory.instances + columns]

    def texts_of(self, columns: Rows) -> Sequence[str]:
        """The texts [k] of labels."""
        return [self.texts[column] for column in columns.tolist()]

    def frequencies_of(self, columns: Rows) -> Rows:
        """How many rows of the memory vote for each of these labels, [k]."""
        return self._frequencies[columns]

    @cached_property
    def _frequencies(self) -> Rows:
        return label_frequency(self.memory.labels_of != 0).astype(np.int64)


@dataclass(frozen=True, kw_only=True, eq=False)
class Queries:
    """Queries, the keys that vote for them by a run's own settings, and what is true of them."""

    texts: Sequence[str]  # [n]
    vectors: Floats  # [n, d]
    choices: Choices
    labels: LabelsOfMemory
    retrieved: Neighbours  # [n, b]
    positives: csr_matrix  # [n, L]
    filtered: csr_matrix  # [n, L]

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def top_k(self) -> int:
        """How many labels of each query the metrics need."""
        return labels_to_rank(self.filtered)

    def ranked(self, count: int) -> RankedLabels:
        """The `count` labels that the memory ranks first, or as many as there are."""
        memory = self.labels.memory
        return predict(
            memory,
            self.retrieved,
            tau=self.choices.tau,
            memorization=self.choices.memorization,
            top_k=min(count, memory.labels_of.shape[1]),
            order=memory.label_order,
        )


def queries_held_out(run: FinishedRun, held: HeldOutRetrieval, scoring: Scoring) -> Queries:
    """The rows that the run holds out."""
    rows, choices = run.slices.held_out, scoring.choices
    texts = run.dataset.train.instances.texts
    return Queries(
        texts=[texts[row] for row in rows.tolist()],
        vectors=scoring.memory.keys[rows].astype(np.float32),
        choices=choices,
        labels=LabelsOfMemory(memory=held.memory, texts=scoring.dataset.labels.texts),
        retrieved=held.retrieved.voting(choices.memorization, choices.depth),
        positives=held.positives,
        filtered=held.filtered,
    )


def queries_of_test(scoring: Scoring) -> Queries:
    """The test rows."""
    test, choices = scoring.dataset.test, scoring.choices
    return Queries(
        texts=test.instances.texts,
        vectors=scoring.queries,
        choices=choices,
        labels=LabelsOfMemory(memory=scoring.memory, texts=scoring.dataset.labels.texts),
        retrieved=scoring.retrieved.voting(choices.memorization, choices.depth),
        positives=test.labels_of,
        filtered=test.filtered,
    )

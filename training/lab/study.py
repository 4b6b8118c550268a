"""Measures how much quality smaller memories lose, on rows that the encoder did not train on.

Decisions are based on the held-out training rows; the test rows are measured in addition.

Shapes: N training rows, L labels, d dimensions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from service.core.errors import InvalidInput
from service.core.types import Floats, Rows
from training.datasets.dataset import Dataset
from training.evaluation.prediction import OfflineMemory
from training.models.precision import Precision
from training.progress import say_nothing
from training.reduction import WholeMemory, representative_rows
from training.reranking.finished_run import open_run, scoring_of
from training.scoring import Scoring, open_scoring
from training.selection.validation import (
    Slices,
    ValidationSettings,
    default_slices,
    retrieve_held_out,
)

# One criterion for all choices: the mean that also chooses checkpoint, lambda and b.
CRITERION = ValidationSettings().metrics


@dataclass(frozen=True, kw_only=True)
class Cost:
    """The cost of one budget: the size of the test rows' memory, and metrics in percent."""

    share: float
    rows: int
    votes: int
    held_out: dict[str, float]
    test: dict[str, float]

    @property
    def criterion(self) -> float:
        """The mean of the held-out rows' criterion metrics."""
        return float(np.mean([self.held_out[name] for name in CRITERION]))


@dataclass(frozen=True, kw_only=True, eq=False)
class Study:
    """A data set encoded by one encoder, and the slices of its training rows."""

    scoring: Scoring
    slices: Slices

    def costs(self, shares: Sequence[float]) -> Iterator[Cost]:
        """Measure every budget, with the settings that were chosen for the whole memory."""
        train, kept = self.scoring.dataset.train, self.slices.kept
        of_kept = self._representative(kept, shares)
        for share, rows in self._representative(np.arange(len(train)), shares).items():
            yield Cost(
                share=share,
                rows=len(rows),
                votes=int(train.labels_of[rows].nnz),
                held_out=self.held_out(of_kept[share]),
                test=self.test(rows),
            )

    def held_out(self, rows: Rows) -> dict[str, float]:
        """Return the metrics of the held-out rows with a memory of these kept rows."""
        dataset, choices = self.scoring.dataset, self.scoring.choices
        fewer = replace(self.slices, kept=rows)
        found = retrieve_held_out(dataset, fewer, *self._vectors, depth=choices.depth)
        weights = dataset.inverse_propensities(dataset.train.labels_of[self.slices.kept])
        return replace(found, inverse_propensities=weights).metrics(choices)

    def test(self, rows: Rows) -> dict[str, float]:
        """Return the metrics of the test rows with a memory of these training rows."""
        dataset, (instances, labels) = self.scoring.dataset, self._vectors
        fewer = replace(dataset, train=dataset.train.select(rows))
        memory = OfflineMemory.of_training(fewer, instances[rows], labels)
        return replace(self.scoring, memory=memory).chosen()[0].metrics

    def _representative(self, among: Rows, shares: Sequence[float]) -> dict[float, Rows]:
        """Return the rows to keep of the training rows `among`, by share."""
        instances, labels = self._vectors
        labels_of = self.scoring.dataset.train.labels_of[among]
        memory = WholeMemory(instances=instances[among], labels_of=labels_of, labels=labels)
        found = representative_rows(memory, shares=shares)
        return {share: among[rows] for share, rows in found.items()}

    @property
    def _vectors(self) -> tuple[Floats, Floats]:
        """The keys of all training rows [N, d] and of the labels [L, d]."""
        keys = self.scoring.memory.keys.astype(np.float32)
        instances, labels = np.split(keys, [len(self.scoring.dataset.train)])
        return instances, labels


def open_study(
    dataset: Dataset, *, run: Path | None, encoder: str | None, precision: Precision = "fp32"
) -> Study:
    """Encode a data set by a run's best checkpoint, or by an encoder that never saw it.

    A run keeps the held-out rows of its training; for an encoder, the default ones are drawn.

    Raises `InvalidInput` unless either a run or an encoder is given, and as
    `training.reranking.finished_run.open_run`.
    """
    if run is not None and encoder is None:
        finished = open_run(run, dataset)
        scoring = scoring_of(finished, precision=precision, report=say_nothing)
        return Study(scoring=scoring, slices=finished.slices)
    if run is not None or encoder is None:
        raise InvalidInput("give either --run or --encoder")
    slices = default_slices(dataset.train.labels_of, dataset.train.filtered)
    scoring = open_scoring(encoder, dataset, folder=None, slices=slices, precision=precision)
    return Study(scoring=scoring, slices=slices)

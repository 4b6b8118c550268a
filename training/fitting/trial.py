"""A trial: one candidate, trained and measured on the held-out rows.

Shapes: n held-out rows with a label that counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from service.core.types import Rows
from training.checkpoints.choices import Choices
from training.selection.gain import Gain, gain_of_rows
from training.selection.validation import HeldOutRetrieval, ValidationSettings, criterion

METRICS = ValidationSettings().metrics  # their mean decides
UNTRAINED = "untrained"


@dataclass(frozen=True, kw_only=True, eq=False)
class Measured:
    """The held-out rows of one split: metrics in percent, and those of each row, [n, 3].

    `numbers` [n] are the rows' numbers in the training split.
    """

    choices: Choices
    metrics: dict[str, float]
    rows: NDArray[np.float64]
    numbers: Rows


@dataclass(frozen=True, kw_only=True, eq=False)
class Trial:
    """What a candidate reached; `rows` has P@1, P@5 and R@100 of all splits' held-out rows, [n, 3].

    A row that several splits hold out is one row, with its mean: it says no more than one row does.
    Checkpoint and choices are those of the first split.
    """

    name: str
    summary: str
    folder: Path
    choices: Choices
    metrics: dict[str, float]  # of the held-out rows, in percent
    rows: NDArray[np.float64]
    seconds: float
    step: int = 0  # of the checkpoint that the run kept
    mixing: float = 1.0

    @property
    def score(self) -> float:
        """The mean of P@1, P@5, R@100 and PSP@5, in percent."""
        return criterion({self.choices.memorization: self.metrics}, METRICS)


def gain(trial: Trial, over: Trial) -> Gain:
    """What `trial` gains over another, measured on the same rows."""
    return gain_of_rows(trial.score - over.score, trial.rows, over.rows)


def best_of(trials: Sequence[Trial]) -> Trial:
    """The trial to keep: a later one must gain more than the standard error, and no P@1 lost."""
    kept = trials[0]
    for trial in trials[1:]:
        if gain(trial, kept).counts and trial.metrics["P@1"] >= trials[0].metrics["P@1"]:
            kept = trial
    return kept


def measure(held_out: HeldOutRetrieval, choices: Choices) -> Measured:
    """What the held-out rows of one split reach with these choices."""
    tau, memorization, depth = choices.tau, choices.memorization, choices.depth
    return Measured(
        choices=choices,
        metrics=held_out.metrics(tau=tau, memorization=memorization, depth=depth),
        rows=held_out.rows(tau=tau, memorization=memorization, depth=depth),
        numbers=held_out.counted(),
    )


def joined(measured: Sequence[Measured], **facts: Any) -> Trial:
    """The trial of a candidate that was measured on each split; `facts` are its other fields."""
    first = measured[0]
    return Trial(
        choices=first.choices,
        metrics={
            name: float(np.mean([one.metrics[name] for one in measured])) for name in first.metrics
        },
        rows=_means_by_number(
            np.concatenate([one.rows for one in measured]),
            np.concatenate([one.numbers for one in measured]),
        ),
        **facts,
    )


def _means_by_number(rows: NDArray[np.float64], numbers: Rows) -> NDArray[np.float64]:
    """The mean of the rows [n, 3] of each number [n], by ascending number."""
    _, place, counts = np.unique(numbers, return_inverse=True, return_counts=True)
    sums = np.zeros((len(counts), rows.shape[1]))
    np.add.at(sums, place, rows)
    means: NDArray[np.float64] = sums / counts[:, None]
    return means

"""Weights of a table's rows, and the relevance of a pair that follows from them.

Data sets store each pair's relevance. `with_relevance` converts it to another scale.

Shapes: R rows of the table, Q queries, L labels.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np
from scipy.sparse import csr_matrix

from service.core.errors import InvalidInput
from service.core.memory.decay import MOST_HALF_LIVES, share_left
from service.core.types import Doubles, Floats
from training.datasets.dataset import Dataset

DAY = 86_400.0  # seconds
# Smallest and largest relevance that float32 can store; a smaller one would become zero.
SMALLEST = float(np.finfo(np.float32).smallest_subnormal)
LARGEST = float(np.finfo(np.float32).max)

Relevance = Literal["given", "binary", "log"]


def require_half_life(days: float | None) -> None:
    """Raise `InvalidInput` unless `days` is a positive number; None stands for no half-life."""
    if days is not None and not 0 < days < float("inf"):
        message = f"the half-life must be a positive number of days, not {days}"
        raise InvalidInput(message, field="half_life")


def half_lives(times: Doubles, *, half_life: float) -> Doubles:
    """Return the ages [R] of rows at `times` [R] in half-lives of `half_life` days.

    They are counted back from the newest row.
    """
    return np.asarray((times.max(initial=-np.inf) - times) / DAY / half_life)


def decayed(weights: Doubles, times: Doubles, *, half_life: float) -> Doubles:
    """Return the weights [R] of rows at `times` [R]: weight * 0.5 ** (age / half_life).

    Age is counted in days before the newest row, and `half_life` is in days. A row that is older
    than `MOST_HALF_LIVES` keeps what it has at that age.
    """
    return weights * share_left(half_lives(times, half_life=half_life))


def faded(times: Doubles, *, half_life: float) -> int:
    """Count the rows at `times` [R] that are too old to lose more weight."""
    return int((half_lives(times, half_life=half_life) > MOST_HALF_LIVES).sum())


def relevance(summed: csr_matrix, *, scale: Relevance) -> csr_matrix:
    """Return the relevance Y [Q, L], float32, of pairs from their summed weights w [Q, L].

    `given` is w, `binary` 1 and `log` ln(1 + w). Values are clipped to `SMALLEST` and `LARGEST`.
    """
    scaled = summed.astype(np.float64)
    if scale == "binary":
        scaled.data = np.ones_like(scaled.data)
    elif scale == "log":
        scaled.data = np.log1p(scaled.data)
    scaled.data = np.clip(scaled.data, SMALLEST, LARGEST)
    return scaled.astype(np.float32)


def with_relevance(dataset: Dataset, scale: Relevance | None) -> Dataset:
    """Return the data set with its training pairs' relevance on `scale`; None changes nothing."""
    if scale is None or scale == "given":
        return dataset
    train = dataset.train
    scaled = relevance(train.labels_of, scale=scale)
    return replace(dataset, train=replace(train, labels_of=scaled))


def vote_clicks(summed: csr_matrix) -> Floats | None:
    """Return for how many clicks a vote of weight 1 stands in each row [N] of Y, float32.

    It is the mean of the row's summed weights. Returns None if it is 1 in all rows.
    """
    counts = np.maximum(np.diff(summed.indptr), 1)
    means = np.asarray(summed.sum(axis=1, dtype=np.float64)).ravel() / counts
    means[np.diff(summed.indptr) == 0] = 1.0
    clicks: Floats = np.clip(means, SMALLEST, LARGEST).astype(np.float32)
    return None if (clicks == 1.0).all() else clicks


def vote_weights(labels_of: csr_matrix) -> Floats | None:
    """Return the weight of each vote in the memory, y / (the mean y of its instance's labels).

    There is one float32 for each entry of Y = `labels_of` [N, L]; their mean over a row is 1.
    Returns None if within each row all labels are equally relevant.
    """
    counts = np.diff(labels_of.indptr)
    starts = labels_of.indptr[:-1][counts > 0]
    if not len(starts):
        return None
    values = labels_of.data.astype(np.float64)
    if np.array_equal(np.minimum.reduceat(values, starts), np.maximum.reduceat(values, starts)):
        return None
    means = np.add.reduceat(values, starts) / counts[counts > 0]
    weights: Floats = (values / np.repeat(means, counts[counts > 0])).astype(np.float32)
    return weights

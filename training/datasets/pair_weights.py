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


def decayed(weights: Doubles, times: Doubles, *, half_life: float) -> Doubles:
    """Return the weights [R] of rows at `times` [R]: weight * 0.5 ** (age / half_life).

    Age is counted in days before the newest row, and `half_life` is in days.
    """
    age = (times.max() - times) / DAY
    return np.asarray(weights * 0.5 ** (age / half_life))


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


def masses(labels_of: csr_matrix) -> Floats | None:
    """Return the weight of each instance [N], float32: the sum of Y = `labels_of` [N, L] over it.

    Instances without labels weigh 1. Returns None if all pairs are equally relevant.
    """
    if not labels_of.nnz or labels_of.data.min() == labels_of.data.max():
        return None
    sums = np.asarray(labels_of.sum(axis=1), np.float32).ravel()
    labeled = np.diff(labels_of.indptr) > 0
    sums[labeled] = np.maximum(sums[labeled], np.finfo(np.float32).tiny)
    sums[~labeled] = 1.0
    return sums

"""What the rows of a table weigh, and how relevant that makes a pair.

Pairs are stored with their relevance. `with_relevance` reads stored weights on another scale.

Shapes: R rows of the table, Q queries, L labels.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np
from scipy.sparse import csr_matrix

from service.core.types import Doubles, Floats
from training.datasets.dataset import Dataset
from training.datasets.sparse_rows import LARGEST, SMALLEST

DAY = 86_400.0  # seconds

Relevance = Literal["given", "binary", "log"]


def decayed(weights: Doubles, times: Doubles, *, half_life: float) -> Doubles:
    """The weights [R] of rows at `times` [R]: weight * 0.5 ** (age / half_life).

    Age is counted in days before the newest row, and `half_life` is in days.
    """
    age = (times.max() - times) / DAY
    return np.asarray(weights * 0.5 ** (age / half_life))


def relevance(summed: csr_matrix, *, scale: Relevance) -> csr_matrix:
    """The relevance Y [Q, L] as float32 of pairs whose rows weigh w = `summed` [Q, L] together.

    `given` is w, `binary` 1 and `log` ln(1 + w). What float32 cannot hold becomes its smallest or
    largest positive number.
    """
    scaled = summed.astype(np.float64)
    if scale == "binary":
        scaled.data = np.ones_like(scaled.data)
    elif scale == "log":
        scaled.data = np.log1p(scaled.data)
    scaled.data = np.clip(scaled.data, SMALLEST, LARGEST)
    return scaled.astype(np.float32)


def with_relevance(dataset: Dataset, scale: Relevance | None) -> Dataset:
    """The data set with the relevance of its training pairs on a scale; None: as they are."""
    if scale is None or scale == "given":
        return dataset
    train = dataset.train
    scaled = relevance(train.labels_of, scale=scale)
    return replace(dataset, train=replace(train, labels_of=scaled))


def vote_weights(labels_of: csr_matrix) -> Floats | None:
    """The weights of an instance's votes in the memory: y / (the mean y of its labels).

    Returns one for each entry of Y = `labels_of` [N, L], as float32; their mean over a row is 1, as
    it is where all labels are equally relevant. None if that is so in every row.
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

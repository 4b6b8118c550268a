"""One batch: instances, the pool of labels that they are contrasted with, and the masks between.

Shapes: B instances, P labels of the pool, N training rows, L labels.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from service.core.types import Bools, Indices, Rows
from training.batches.settings import BatchSettings
from training.datasets.training_pairs import TrainingPairs

HardNegatives = NDArray[np.int32]  # [N, top] labels for each row, -1 where there are fewer


@dataclass(frozen=True, kw_only=True, eq=False)
class AddedLabels:
    """Further labels of the pool: `sampled` of those listed for each row, -1 for none, [N, k]."""

    labels: NDArray[np.int32]
    sampled: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Batch:
    """Instances, pool, and the masks that the losses take (`training.systems.losses`)."""

    rows: Rows  # [B] of the training split
    pool: Indices  # [P] labels, ascending
    sampled: Bools  # [B, P]
    positives: Bools  # [B, P]
    negatives: Bools  # [B, P]
    instance_negatives: Bools  # [B, B]


def draw_batch(
    pairs: TrainingPairs,
    rows: Rows,
    *,
    settings: BatchSettings,
    hard_negatives: HardNegatives | None,
    rng: np.random.Generator,
    added: AddedLabels | None = None,
) -> Batch:
    """Sample positives, hard negatives and `added` labels of `rows` [B], and compute the masks."""
    sampled_labels = [_sample(pairs, row, settings, rng) for row in rows.tolist()]
    joined = [np.zeros(0, np.int32)]
    if hard_negatives is not None and settings.hard_negatives:
        joined.append(_sample_listed(hard_negatives[rows], settings.hard_negatives, rng))
    if added is not None and settings.pool != "all":
        joined.append(_sample_listed(added.labels[rows], added.sampled, rng))
    if settings.pool == "all":
        pool = np.arange(pairs.labels, dtype=np.int32)
    else:
        pool = np.unique(np.concatenate([*sampled_labels, *joined])).astype(np.int32)
    place = np.full(pairs.labels, -1, np.int64)  # of each label in the pool
    place[pool] = np.arange(len(pool))
    positives = _mask(pairs.labels_of, rows, place, len(pool))
    filtered = _mask(pairs.filtered, rows, place, len(pool))
    sampled = np.zeros_like(positives)
    lines = np.repeat(np.arange(len(rows)), [len(labels) for labels in sampled_labels])
    sampled[lines, place[np.concatenate(sampled_labels)]] = True
    return Batch(
        rows=rows,
        pool=pool,
        sampled=sampled,
        positives=positives & ~filtered,
        negatives=~(positives | filtered),
        instance_negatives=without_common_label(pairs.labels_of[rows]),
    )


def without_common_label(labels_of: csr_matrix) -> Bools:
    """The pairs of instances [B, B] without a common label (Q of Eq. 10), from labels [B, L]."""
    present = csr_matrix(labels_of != 0).astype(np.float32)
    common = (present @ present.T).toarray()
    apart: Bools = common == 0
    np.fill_diagonal(apart, False)
    return apart


def _sample(
    pairs: TrainingPairs, row: int, settings: BatchSettings, rng: np.random.Generator
) -> Indices:
    """Labels of a row, none twice: all if there are no more than `positives`."""
    entries = slice(pairs.drawable.indptr[row], pairs.drawable.indptr[row + 1])
    labels: Indices = pairs.drawable.indices[entries]
    if len(labels) <= settings.positives:
        return labels
    shares = None
    if settings.sampling == "weighted":
        relevance = pairs.relevance.data[entries].astype(np.float64)
        shares = relevance / relevance.sum()
    return rng.choice(labels, size=settings.positives, replace=False, p=shares)


def _sample_listed(
    listed: NDArray[np.int32], count: int, rng: np.random.Generator
) -> NDArray[np.int32]:
    """`count` of the labels that are listed for each row, in one flat array."""
    keys = rng.random(listed.shape)
    keys[listed < 0] = 2.0  # missing ones last
    order = np.argsort(keys, axis=1, kind="stable")[:, :count]
    chosen = np.take_along_axis(listed, order, axis=1)
    return chosen[chosen >= 0]


def _mask(matrix: csr_matrix, rows: Rows, place: Rows, width: int) -> Bools:
    """The entries of matrix[rows] whose columns are in the pool, [B, P]."""
    entries = matrix[rows]
    lines = np.repeat(np.arange(len(rows)), np.diff(entries.indptr))
    places = place[entries.indices]
    inside = (places >= 0) & (entries.data != 0)
    mask = np.zeros((len(rows), width), bool)
    mask[lines[inside], places[inside]] = True
    return mask

"""A batch: instances, the pool of labels that they are contrasted with, and the masks between both.

A recipe's tables `[batch]` and `[refresh]` hold the settings.

Shapes: B instances, P labels of the pool, N training rows, L labels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass as checked_dataclass
from scipy.sparse import csr_matrix

from service.core.config import STRICT, Count, Natural, Positive
from service.core.types import Bools, Indices, Rows
from training.datasets.training_pairs import TrainingPairs

HardNegatives = NDArray[np.int32]  # [N, top] labels for each row, -1 if there are fewer


@checked_dataclass(frozen=True, kw_only=True, config=STRICT)
class BatchSettings:
    """The composition of a batch.

    `instances` is the size of the global batch, whatever the number of processes. For each
    instance `positives` of its labels are sampled, uniformly or `weighted` by relevance, and
    `hard_negatives` (m of RAE-XMC) of its mined labels. Instances are contrasted with the `pool`:
    the labels sampled for the batch, or all labels.
    """

    instances: Annotated[int, Field(ge=2)] = 1024
    positives: Count = 1
    sampling: Literal["uniform", "weighted"] = "uniform"
    hard_negatives: Natural = 0
    pool: Literal["batch", "all"] = "batch"
    order: Literal["shuffled", "clustered"] = "shuffled"
    cluster_size: Annotated[int, Field(ge=2)] = 32  # instances; used if order is clustered


@checked_dataclass(frozen=True, kw_only=True, config=STRICT)
class RefreshSettings:
    """When all texts are encoded again, for new hard negatives and clusters.

    From step `first` on this happens every `every` steps (0: never) or every `every_epochs` epochs,
    which suits data of any size. A row's hard negatives are its `top` (hnm_topk) nearest labels
    that are not its positives, found by the index `library` or an exact scan.
    """

    every: Natural = 0
    every_epochs: Positive | None = None
    first: Natural = 0
    top: Count = 50
    library: Literal["exact", "faiss", "hnswlib"] = "exact"

    @model_validator(mode="after")
    def _has_one_distance(self) -> Self:
        if self.every and self.every_epochs is not None:
            raise ValueError("give either every or every_epochs")
        return self

    @property
    def recurs(self) -> bool:
        """Whether texts are encoded again and again, from step `first` on."""
        return self.every > 0 or self.every_epochs is not None


@dataclass(frozen=True, kw_only=True, eq=False)
class Batch:
    """Instances, pool, and the masks for the losses (`training.systems.losses`)."""

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
) -> Batch:
    """Sample positives and hard negatives of `rows` [B], and compute the masks."""
    sampled_labels = [_sample(pairs, row, settings, rng) for row in rows.tolist()]
    joined = [np.zeros(0, np.int32)]
    if hard_negatives is not None and settings.hard_negatives:
        joined.append(_sample_listed(hard_negatives[rows], settings.hard_negatives, rng))
    if settings.pool == "all":
        pool = np.arange(pairs.labels, dtype=np.int32)
    else:
        pool = np.unique(np.concatenate([*sampled_labels, *joined])).astype(np.int32)
    place = np.full(pairs.labels, -1, np.int64)  # each label's place in the pool
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
    """Mark the pairs of instances [B, B] without a common label (Q in Eq. 10), given [B, L]."""
    present = csr_matrix(labels_of != 0).astype(np.float32)
    common = (present @ present.T).toarray()
    apart: Bools = common == 0
    np.fill_diagonal(apart, False)
    return apart


def _sample(
    pairs: TrainingPairs, row: int, settings: BatchSettings, rng: np.random.Generator
) -> Indices:
    """Sample `positives` different labels of a row, or return all if it has no more."""
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
    """Sample `count` of the labels listed for each row; return all samples in one flat array."""
    keys = rng.random(listed.shape)
    keys[listed < 0] = 2.0  # missing ones last
    order = np.argsort(keys, axis=1, kind="stable")[:, :count]
    chosen = np.take_along_axis(listed, order, axis=1)
    return chosen[chosen >= 0]


def _mask(matrix: csr_matrix, rows: Rows, place: Rows, width: int) -> Bools:
    """Mark the nonzero entries of matrix[rows] whose columns are in the pool, [B, P]."""
    entries = matrix[rows]
    lines = np.repeat(np.arange(len(rows)), np.diff(entries.indptr))
    places = place[entries.indices]
    inside = (places >= 0) & (entries.data != 0)
    mask = np.zeros((len(rows), width), bool)
    mask[lines[inside], places[inside]] = True
    return mask

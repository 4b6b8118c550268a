"""The protocol of a system: what it is built from, what it must do, and what it is given to do it.

Shapes: B instances, P labels of the pool, N training rows, n of them that train, L labels, d
dimensions, M metadata items, K of them that a batch encodes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from torch import Tensor, nn

from service.core.types import Floats, Rows
from training.batches.batch import Batch
from training.checkpoints.choices import UNCHOSEN, Choices
from training.models.sharding import Sharding
from training.models.two_heads import TwoHeads
from training.selection.validation import Validation
from training.systems import losses


@dataclass(frozen=True, kw_only=True, eq=False)
class EncodedBatch:
    """A batch with its vectors; the masks are those of `Batch` as tensors."""

    instances: Tensor  # [B, d] unit vectors
    labels: Tensor  # [P, d] unit vectors; [0, d] where the system encodes no labels
    rows: Tensor  # [B] of the training split
    pool: Tensor  # [P] the labels' columns
    sampled: Tensor  # [B, P]
    positives: Tensor  # [B, P]
    negatives: Tensor  # [B, P]
    instance_negatives: Tensor  # [B, B]
    items: Tensor | None = None  # [K, d] unit vectors of the items that the instances attend to

    @classmethod
    def from_vectors(cls, batch: Batch, vectors: Tensor) -> EncodedBatch:
        """The batch on the device of `vectors` [B + P + K, d]: instances, pool, items.

        They are [B, d] where the system encodes no labels, and K is 0 where it reads no items.
        """

        def tensor(array: NDArray[Any]) -> Tensor:
            return torch.from_numpy(np.ascontiguousarray(array)).to(vectors.device)

        instances, encoded = len(batch.rows), len(batch.rows) + len(batch.pool)
        return cls(
            instances=vectors[:instances],
            labels=vectors[instances:encoded],
            rows=tensor(batch.rows.astype(np.int64)),
            pool=tensor(batch.pool.astype(np.int64)),
            sampled=tensor(batch.sampled),
            positives=tensor(batch.positives),
            negatives=tensor(batch.negatives),
            instance_negatives=tensor(batch.instance_negatives),
            items=vectors[encoded:],
        )

    @property
    def candidates(self) -> Tensor:
        """The labels that an instance is compared with, its positives included, [B, P]."""
        return self.positives | self.negatives

    @property
    def label_scores(self) -> Tensor:
        """s(x, l), [B, P]."""
        return self.instances @ self.labels.T

    @property
    def instance_scores(self) -> Tensor:
        """s(x, x'), [B, B]."""
        return self.instances @ self.instances.T

    def triplet(self, label_scores: Tensor, *, margin: float, hardest: int) -> Tensor:
        """`losses.triplet` of any scores [B, P] with this batch's positives and negatives."""
        return losses.triplet(
            label_scores=label_scores,
            sampled=self.sampled,
            negatives=self.negatives,
            margin=margin,
            hardest=hardest,
        )

    def label_logits(self, *, tau: float) -> Tensor:
        """`losses.against_negatives` of s(x, l), [B, P]."""
        return losses.against_negatives(scores=self.label_scores, negatives=self.negatives, tau=tau)

    def contrast_with_instances(self, *, tau: float) -> Tensor:
        """`losses.contrast_with_instances` of this batch."""
        return losses.contrast_with_instances(
            label_scores=self.label_scores,
            instance_scores=self.instance_scores,
            sampled=self.sampled,
            negatives=self.negatives,
            instance_negatives=self.instance_negatives,
            tau=tau,
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class ItemsOfTask:
    """The metadata items of the data, for a system that reads them."""

    count: int  # M
    vectors: Callable[[], Floats]  # [M, d] of the items' texts, by the untrained encoder
    linked: csr_matrix  # [N, M] the true items of all training rows
    rows: Rows  # [n] the training rows that `Task.instance_vectors` encodes


@dataclass(frozen=True, kw_only=True)
class Task:
    """What a system is built from.

    `label_vectors()` [L, d] and `instance_vectors()` [n, d] encode with the untrained encoder; the
    instances are those of the rows that train, and `labels_of` [n, L] are their labels. `heads` are
    UniDEC's on the encoder, if it has any; `items` are given to systems that read metadata.
    """

    labels: int
    dimension: int
    label_vectors: Callable[[], Floats]
    instance_vectors: Callable[[], Floats]
    labels_of: csr_matrix
    heads: TwoHeads | None = None
    items: ItemsOfTask | None = None
    sharding: Sharding = field(default_factory=Sharding)


@dataclass(frozen=True, kw_only=True, eq=False)
class FinishedTraining:
    """The best checkpoint's vectors and choices, which a system chooses its settings with."""

    validation: Validation
    instances: Floats  # [N, d]
    labels: Floats  # [L, d], the encoder's vectors of the labels' texts
    keys: Floats  # [L, d], the label keys that were chosen for the memory
    choices: Choices  # the memory's temperature, lambda and b
    head_weights: Mapping[str, Tensor]  # the head's parameters; all rows of sharded tables


class System(Protocol):
    """A loss, and the parameters and label keys that belong to it."""

    encodes_labels: bool  # false where labels are rows of a table
    head: nn.Module | None  # the system's parameters beside the encoder's
    sharded_parameters: tuple[str, ...]  # of the head: sparse gradients, rows split over processes
    memory_tau: float  # the memory's temperature while the encoder trains
    heads: TwoHeads | None  # whose share of the key is chosen at the end; None: there is one vector
    training_only: nn.Module | None  # parameters of the loss that no checkpoint needs
    has_logits: bool  # whether the loss gives a pair a probability

    def loss(self, batch: EncodedBatch) -> Tensor:
        """The batch's loss, a scalar."""
        ...

    def logits(self, batch: EncodedBatch) -> Tensor:
        """The logits of the probabilities that a label of the pool fits an instance, [B, P].

        Only where `has_logits`.
        """
        ...

    def text_vectors(self, batch: EncodedBatch) -> tuple[Tensor, Tensor]:
        """The unit vectors of instances [B, d] and labels [P, d] that an oracle may guide."""
        ...

    def label_keys(self, vectors: Floats) -> Floats:
        """The label keys Z of the memory, [L, d], from the encoder's label vectors [L, d]."""
        ...

    def items_of(self, rows: Rows) -> Rows:
        """The numbers of the metadata items that training rows [B] attend to, ascending."""
        ...

    def instance_keys(self, vectors: Floats, items: Floats) -> Floats:
        """The instances' keys X [n, d] from the encoder's vectors [n, d], and of items [M, d]."""
        ...

    def look_up(self, vectors: Floats, items: Floats) -> None:
        """Predict the items of all training rows, by the encoder's vectors [N, d] and [M, d]."""
        ...

    def neighbour_vectors(self, vectors: Floats) -> Floats:
        """What hard negatives and clusters are computed with, from the encoder's vectors [n, d]."""
        ...

    def choose_settings(self, finished: FinishedTraining | None, folder: Path) -> str:
        """Choose this system's settings for inference and write them into the checkpoint's folder.

        `finished` is None where no rows were held out to choose on. Returns a line for the user,
        empty where nothing was chosen.
        """
        ...


Settings = TypeVar("Settings")


class SystemDefaults:
    """A system without sharded parameters and without settings of its own to choose."""

    sharded_parameters: tuple[str, ...] = ()
    memory_tau = UNCHOSEN.tau
    heads: TwoHeads | None = None
    training_only: nn.Module | None = None
    has_logits = False

    def logits(self, batch: EncodedBatch) -> Tensor:
        """There are none."""
        raise NotImplementedError

    def text_vectors(self, batch: EncodedBatch) -> tuple[Tensor, Tensor]:
        """The encoder's vectors unchanged."""
        return batch.instances, batch.labels

    def items_of(self, rows: Rows) -> Rows:
        """None."""
        return np.empty(0, np.int64)

    def instance_keys(self, vectors: Floats, items: Floats) -> Floats:
        """The vectors unchanged."""
        return vectors

    def look_up(self, vectors: Floats, items: Floats) -> None:
        """There is nothing to predict."""

    def neighbour_vectors(self, vectors: Floats) -> Floats:
        """The vectors unchanged."""
        return vectors

    def choose_settings(self, finished: FinishedTraining | None, folder: Path) -> str:
        """Choose nothing."""
        return ""


class EncoderOnly(SystemDefaults, Generic[Settings]):
    """A system without a head, whose encoder reads instances and labels alike."""

    encodes_labels = True
    head = None

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def label_keys(self, vectors: Floats) -> Floats:
        """The label vectors unchanged."""
        return vectors

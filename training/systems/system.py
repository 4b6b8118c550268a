"""The base class of all systems, and the data that a system is built from and trained on.

Shapes: B instances, P labels of the pool, N training rows, n rows that train, L labels, d
dimensions, M metadata items, K items that a batch encodes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic.dataclasses import dataclass as checked_dataclass
from scipy.sparse import csr_matrix
from torch import Tensor, nn

from service.core.config import STRICT
from service.core.types import Floats, Rows
from training.batches.batch import Batch
from training.checkpoints.choices import UNCHOSEN
from training.models.sharding import Sharding
from training.models.two_heads import TwoHeads
from training.systems import losses
from training.systems.finished import FinishedTraining, choose_novel_by_keys


@dataclass(frozen=True, kw_only=True, eq=False)
class EncodedBatch:
    """A batch with its vectors, and with the masks of `Batch` as tensors."""

    instances: Tensor  # [B, d] unit vectors
    labels: Tensor  # [P, d] unit vectors; [0, d] if the system encodes no labels
    rows: Tensor  # [B] of the training split
    pool: Tensor  # [P] the labels' columns
    sampled: Tensor  # [B, P]
    positives: Tensor  # [B, P]
    negatives: Tensor  # [B, P]
    instance_negatives: Tensor  # [B, B]
    items: Tensor | None = None  # [K, d] unit vectors of the items that the instances attend to

    @classmethod
    def from_vectors(cls, batch: Batch, vectors: Tensor) -> EncodedBatch:
        """Return the batch for `vectors` [B + P + K, d] of instances, pool and items.

        `vectors` is [B, d] if the system encodes no labels; K is 0 if it reads no items.
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

    def triplet(self, label_scores: Tensor, *, margin: float, hardest: int) -> Tensor:
        """Return `losses.triplet` of scores [B, P] with this batch's positives and negatives."""
        return losses.triplet(
            label_scores=label_scores,
            sampled=self.sampled,
            negatives=self.negatives,
            margin=margin,
            hardest=hardest,
        )

    def decoupled_softmax(self, label_scores: Tensor, *, tau: float) -> Tensor:
        """Return `losses.decoupled_softmax` of scores [B, P] with this batch's masks."""
        return losses.decoupled_softmax(
            label_scores=label_scores, sampled=self.sampled, negatives=self.negatives, tau=tau
        )

    def contrast_with_instances(self, *, tau: float) -> Tensor:
        """Return `losses.contrast_with_instances` of this batch."""
        return losses.contrast_with_instances(
            label_scores=self.label_scores,
            instance_scores=self.instances @ self.instances.T,
            sampled=self.sampled,
            negatives=self.negatives,
            instance_negatives=self.instance_negatives,
            tau=tau,
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class ItemsOfTask:
    """The metadata items of the data, for a system that reads them."""

    count: int  # M
    vectors: Callable[[], Floats]  # returns the untrained encoder's vectors of the items, [M, d]
    linked: csr_matrix  # [N, M] the items that the data link each training row to
    rows: Rows  # [n] the training rows that `Task.instance_vectors` encodes


@dataclass(frozen=True, kw_only=True)
class Task:
    """The data that a system is built from.

    `label_vectors()` [L, d] and `instance_vectors()` [n, d] encode with the untrained encoder. The
    instances are the rows that train, and `labels_of` [n, L] are their labels. `heads` are UniDEC's
    heads, if the encoder has them. Only systems that read metadata get `items`.
    """

    labels: int
    dimension: int
    label_vectors: Callable[[], Floats]
    instance_vectors: Callable[[], Floats]
    labels_of: csr_matrix
    heads: TwoHeads | None = None
    items: ItemsOfTask | None = None
    sharding: Sharding = field(default_factory=Sharding)


class System:
    """A loss, and the parameters and label keys that belong to it.

    The defaults are those of a dual encoder without a head.
    """

    encodes_labels = True  # False if labels are rows of a table
    head: nn.Module | None = None  # the system's own parameters, in addition to the encoder's
    sharded_parameters: tuple[str, ...] = ()  # the head's tables whose rows processes share out
    memory_tau = UNCHOSEN.tau  # the memory's temperature while the encoder trains
    heads: TwoHeads | None = None  # UniDEC's; their shares of a key are chosen at the end
    choose_novel = False  # whether similar labels' keys may move a novel label's key

    def loss(self, batch: EncodedBatch) -> Tensor:
        """Return the batch's loss, a scalar."""
        raise NotImplementedError

    def text_vectors(self, batch: EncodedBatch) -> tuple[Tensor, Tensor]:
        """Return the unit vectors that an oracle guides: instances [B, d] and labels [P, d]."""
        return batch.instances, batch.labels

    def label_keys(self, vectors: Floats) -> Floats:
        """Return the memory's label keys Z [L, d] from the encoder's label vectors [L, d]."""
        return vectors

    def items_of(self, rows: Rows) -> Rows:
        """Return the numbers of the metadata items that training rows [B] attend to, ascending."""
        return np.empty(0, np.int64)

    def instance_keys(self, vectors: Floats, items: Floats) -> Floats:
        """Return instance keys X [n, d] from the vectors of instances [n, d] and items [M, d]."""
        return vectors

    def look_up(self, vectors: Floats, items: Floats) -> None:
        """Predict each training row's items, from the vectors of rows [N, d] and items [M, d]."""

    def neighbour_vectors(self, vectors: Floats) -> Floats:
        """Return the vectors for mining hard negatives and clustering, given vectors [n, d]."""
        return vectors

    def choose_settings(self, finished: FinishedTraining | None, folder: Path) -> str:
        """Choose settings for inference and write them into the checkpoint's folder.

        `finished` is None if no rows were held out. Returns a line for the user, empty if nothing
        was chosen.
        """
        return choose_novel_by_keys(finished, folder) if self.choose_novel else ""


@checked_dataclass(frozen=True, kw_only=True, config=STRICT)
class KeySettings:
    """The setting of all systems whose learned label keys can also help novel labels.

    `choose_novel` chooses, in minutes at the end, how similar labels' keys change a novel label's
    key. Otherwise that is the key of the label's text.
    """

    choose_novel: bool = True


Settings = TypeVar("Settings")


class EncoderOnly(System, Generic[Settings]):
    """A system without a head, whose encoder reads both instances and labels."""

    def __init__(self, settings: Settings, task: Task) -> None:
        self._settings = settings  # the task is not needed: the encoder is all there is

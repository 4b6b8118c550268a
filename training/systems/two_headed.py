"""What systems of two heads share: a label's key [D(z_l); Psi_l], its halves, and the first Psi.

A recipe's table `[heads]` adds the heads (`training.models.two_heads`). D is compared with D of a
label's text, C with the label's classifier Psi_l. A label without training rows keeps C(z_l).

Shapes: n texts, L labels, e dimensions of D, c of C and Psi.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from service.core.errors import InvalidConfig
from service.core.types import Floats
from training.datasets.propensity import label_frequency
from training.models.class_means import class_means
from training.models.classifier_table import TABLE, ClassifierTable
from training.models.sharding import Sharding
from training.models.two_heads import TwoHeads
from training.systems.finished import choose_novel_by_keys
from training.systems.system import EncodedBatch, FinishedTraining, SystemDefaults, Task

Initial = Literal["texts", "queries", "random"]


class SeenClassifiers(ClassifierTable):
    """Psi, and which labels have a row that trains them."""

    def __init__(self, initial: Tensor, seen: Tensor, *, learned: bool, sharding: Sharding) -> None:
        super().__init__(initial, learned=learned, sharding=sharding)
        self.register_buffer("seen", seen)  # [L]


class TwoHeaded(SystemDefaults):
    """A system that trains Psi, and the encoder with its heads where these are not frozen."""

    encodes_labels = True
    sharded_parameters = (TABLE,)
    heads: TwoHeads

    def __init__(self, head: SeenClassifiers, heads: TwoHeads, *, choose_novel: bool) -> None:
        self.head, self.heads, self._choose_novel = head, heads, choose_novel
        heads.apart = True

    def halves(self, vectors: Tensor) -> tuple[Tensor, Tensor]:
        """D [n, e] as unit vectors and C [n, c] as they are, from their concatenation."""
        encoded, classified = vectors.split([self.heads.encoder, self.heads.classifier], dim=-1)
        return normalize(encoded, dim=-1), classified

    def text_vectors(self, batch: EncodedBatch) -> tuple[Tensor, Tensor]:
        """D alone: C is compared with Psi, which no oracle has."""
        return self.halves(batch.instances)[0], self.halves(batch.labels)[0]

    def neighbour_vectors(self, vectors: Floats) -> Floats:
        """D alone, [n, e]: UniDEC mines hard negatives by an index of D(z)."""
        encoded = vectors[:, : self.heads.encoder]
        unit: Floats = encoded / np.maximum(np.linalg.norm(encoded, axis=1, keepdims=True), 1e-12)
        return unit

    def label_keys(self, vectors: Floats) -> Floats:
        """[D(z_l); Psi_l], from the vectors [L, e + c] of the labels' texts.

        Psi takes the length of C, whose place it takes. Labels without a row keep C(z_l).
        """
        classifiers = normalize(self.head.sharding.gather(self.head.weight.detach()), dim=-1)
        seen = self.head.seen.cpu().numpy()
        keys = vectors.copy()
        lengths = np.linalg.norm(vectors[seen, self.heads.encoder :], axis=1, keepdims=True)
        keys[seen, self.heads.encoder :] = lengths * classifiers.cpu().numpy()[seen]
        return keys

    def choose_settings(self, finished: FinishedTraining | None, folder: Path) -> str:
        """Choose how a novel label's key is made from those of similar labels, and from queries.

        The keys [D(z_l); Psi_l] of similar labels move the novel label's [D(z); C(z)].
        """
        return choose_novel_by_keys(finished, folder) if self._choose_novel else ""


def heads_of_task(task: Task, *, system: str) -> TwoHeads:
    """The encoder's heads; raises `InvalidConfig` where it has none."""
    if task.heads is None:
        raise InvalidConfig(f"system {system} needs the table [heads], with encoder and classifier")
    return task.heads


def untrained_classifiers(
    task: Task, heads: TwoHeads, *, initial: Initial, learned: bool
) -> SeenClassifiers:
    """The first Psi: C of each label's text, the mean of it and C of its queries, or random."""
    return SeenClassifiers(
        _first_rows(task, heads, initial),
        torch.from_numpy(label_frequency(task.labels_of) > 0),
        learned=learned,
        sharding=task.sharding,
    )


def _first_rows(task: Task, heads: TwoHeads, initial: Initial) -> Tensor:
    """Unit vectors [L, c]."""
    if initial == "random":
        generator = torch.Generator().manual_seed(0)
        return normalize(torch.randn(task.labels, heads.classifier, generator=generator), dim=-1)
    texts = task.label_vectors()[:, heads.encoder :]
    if initial == "queries":
        instances = task.instance_vectors()[:, heads.encoder :]
        texts = class_means(task.labels_of, instances, texts, text_weight=1.0)
    return normalize(torch.from_numpy(np.ascontiguousarray(texts)), dim=-1)

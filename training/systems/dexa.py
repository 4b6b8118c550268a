"""DEXA (Dahiya et al., KDD 2023): NGAME's encoder stage with auxiliary vectors added to the labels.

A label is clicked for queries that its text does not tell. A free vector takes up the difference,
so that the encoder need not be bent to it. Most labels have too few clicks to learn a vector each;
so similar labels share one:

    z^_l = normalize(E(z_l) + gamma e_c(l)),    loss: NGAME's triplets with z^_l in place of E(z_l)

c(l) is the label's cluster, by balanced 2-means of the label vectors before the first step. Queries
have no auxiliary vector. All e start at zero here, so that training starts from what the encoder
knows; in the authors' code they start at random.

z^_l is also the label's key in the memory, and a label without clicks takes its cluster's vector. A
label that is posted later has no cluster: its key is the vector of its text, moved by the keys of
similar labels as far as that helps on labels hidden for it (`choose_novel`).

Shapes: B instances, P labels of the pool, L labels, K clusters, d dimensions.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from pydantic.dataclasses import dataclass
from torch import Tensor
from torch.nn.functional import normalize

from service.core.config import STRICT, Count, Positive
from service.core.types import Floats, Rows
from training.batches.clusters import balanced_clusters
from training.models.classifier_table import TABLE, ClassifierTable
from training.models.sharding import Sharding
from training.systems.finished import choose_novel_by_keys
from training.systems.system import EncodedBatch, FinishedTraining, SystemDefaults, Task


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings:
    """`gamma` weighs the auxiliary vector against the text, which is a unit vector.

    At most `cluster_size` labels share a vector; two is the authors' number for
    LF-AmazonTitles-131K. `margin` and `hardest` are NGAME's. At the end it takes minutes to choose
    how a novel label's key is made of those of similar labels; `choose_novel = false` leaves the
    vector of its text.
    """

    gamma: Positive = 1.0
    cluster_size: Count = 2
    margin: Positive = 0.3
    hardest: Count = 10
    choose_novel: bool = True


class AuxiliaryVectors(ClassifierTable):
    """e [K, d], a row for each cluster, and the cluster of each label."""

    def __init__(self, clusters: Rows, *, dimension: int, sharding: Sharding) -> None:
        initial = torch.zeros(int(clusters.max()) + 1, dimension)  # [K, d]
        super().__init__(initial, learned=True, sharding=sharding)
        self.register_buffer("clusters", torch.from_numpy(clusters))  # [L]

    def of(self, labels: Tensor) -> Tensor:
        """e_c(l) of the labels `labels` [P], as [P, d]."""
        return self.rows(self.clusters[labels])

    def of_all(self) -> Tensor:
        """e_c(l) of all labels without a graph, [L, d] on the processor."""
        table = self.sharding.gather(self.weight.detach())
        return table[self.clusters].cpu()


class AugmentedLabels(SystemDefaults):
    """A system whose labels are texts with auxiliary vectors."""

    encodes_labels = True
    sharded_parameters = (TABLE,)

    def __init__(self, head: AuxiliaryVectors, *, gamma: float, choose_novel: bool) -> None:
        self.head, self._gamma, self._choose_novel = head, gamma, choose_novel

    def text_vectors(self, batch: EncodedBatch) -> tuple[Tensor, Tensor]:
        """E(x) [B, d] and z^_l [P, d], which stands for the label's text."""
        labels = augmented(
            texts=batch.labels, auxiliary=self.head.of(batch.pool), gamma=self._gamma
        )
        return batch.instances, labels

    def label_scores(self, batch: EncodedBatch) -> Tensor:
        """<E(x), z^_l>, [B, P]."""
        instances, labels = self.text_vectors(batch)
        return instances @ labels.T

    def label_keys(self, vectors: Floats) -> Floats:
        """z^ of all labels."""
        keys: Floats = augmented(
            texts=torch.from_numpy(vectors),
            auxiliary=self.head.of_all(),
            gamma=self._gamma,
        ).numpy()
        return keys

    def choose_settings(self, finished: FinishedTraining | None, folder: Path) -> str:
        """Choose how a novel label's key is moved by the keys of similar labels, and by queries."""
        return choose_novel_by_keys(finished, folder) if self._choose_novel else ""


class Dexa(AugmentedLabels):
    """Trains the encoder and the auxiliary vectors."""

    def __init__(self, settings: Settings, head: AuxiliaryVectors) -> None:
        super().__init__(head, gamma=settings.gamma, choose_novel=settings.choose_novel)
        self._settings = settings

    def loss(self, batch: EncodedBatch) -> Tensor:
        """The triplet loss over the pool's augmented labels."""
        return batch.triplet(
            self.label_scores(batch), margin=self._settings.margin, hardest=self._settings.hardest
        )


def augmented(*, texts: Tensor, auxiliary: Tensor, gamma: float) -> Tensor:
    """z^ = normalize(E(z) + gamma e), unit vectors [n, d]."""
    return normalize(texts + gamma * auxiliary, dim=-1)


def clusters_of(vectors: Floats, *, size: int) -> Rows:
    """The number of each label's cluster [L], from label vectors [L, d]; at most `size` share it.

    The labels of a cluster have close vectors.
    """
    if size == 1:
        return np.arange(len(vectors), dtype=np.int64)
    numbers = np.empty(len(vectors), np.int64)
    rng = np.random.default_rng(0)
    for number, members in enumerate(balanced_clusters(vectors, size=size, rng=rng)):
        numbers[members] = number
    return numbers


def build(settings: Settings, task: Task) -> Dexa:
    """The system with clusters of the untrained label vectors, and auxiliary vectors of zeros."""
    clusters = clusters_of(task.label_vectors(), size=settings.cluster_size)
    head = AuxiliaryVectors(clusters, dimension=task.dimension, sharding=task.sharding)
    return Dexa(settings, head)

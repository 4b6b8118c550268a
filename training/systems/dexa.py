"""DEXA (Dahiya et al., KDD 2023): NGAME's encoder stage with auxiliary vectors added to the labels.

Some clicks on a label cannot be guessed from its text. A learned auxiliary vector covers this
difference, so the encoder need not. Most labels have too few clicks for a vector of their own, so
similar labels share one:

    z^_l = normalize(E(z_l) + gamma e_c(l)),    loss: NGAME's triplets with z^_l instead of E(z_l)

c(l) is the label's cluster, by balanced 2-means of the label vectors before the first step. Queries
have no auxiliary vector. All e start at zero here, so training starts from what the encoder knows;
in the authors' code they start at random.

z^_l is also the label's key in the memory. A label without clicks uses its cluster's vector too. A
label that is posted later has no cluster: its key is the vector of its text, moved by the keys of
similar labels as far as that helps on labels hidden from training (`choose_novel`).

Shapes: B instances, P labels of the pool, L labels, K clusters, d dimensions.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from pydantic.dataclasses import dataclass
from torch import Tensor
from torch.nn.functional import normalize

from service.core.config import STRICT, Count, Positive
from service.core.types import Floats, Rows
from training.batches.clusters import balanced_clusters
from training.models.sharding import TABLE, ClassifierTable, Sharding
from training.systems.system import EncodedBatch, KeySettings, System, Task


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings(KeySettings):
    """`gamma` weighs the auxiliary vector against the text, which is a unit vector.

    At most `cluster_size` labels share a vector; two is the authors' number for
    LF-AmazonTitles-131K. `margin` and `hardest` are NGAME's.
    """

    gamma: Positive = 1.0
    cluster_size: Count = 2
    margin: Positive = 0.3
    hardest: Count = 10


class AuxiliaryVectors(ClassifierTable):
    """e [K, d], a row for each cluster, and the cluster of each label."""

    def __init__(self, clusters: Rows, *, dimension: int, sharding: Sharding) -> None:
        initial = torch.zeros(int(clusters.max()) + 1, dimension)  # [K, d]
        super().__init__(initial, learned=True, sharding=sharding)
        self.register_buffer("clusters", torch.from_numpy(clusters))  # [L]

    def of(self, labels: Tensor) -> Tensor:
        """Return e_c(l) [P, d] of the given labels [P]."""
        return self.rows(self.clusters[labels])


class AugmentedLabels(System):
    """A system that adds auxiliary vectors to the labels' text vectors."""

    head: AuxiliaryVectors
    sharded_parameters = (TABLE,)

    def __init__(self, settings: Any, head: AuxiliaryVectors, *, gamma: float) -> None:
        self._settings, self.head, self._gamma = settings, head, gamma
        self.choose_novel = settings.choose_novel

    def text_vectors(self, batch: EncodedBatch) -> tuple[Tensor, Tensor]:
        """Return E(x) [B, d], and z^_l [P, d] instead of the labels' text vectors."""
        labels = augmented(
            texts=batch.labels, auxiliary=self.head.of(batch.pool), gamma=self._gamma
        )
        return batch.instances, labels

    def label_scores(self, batch: EncodedBatch) -> Tensor:
        """Return <E(x), z^_l>, [B, P]."""
        instances, labels = self.text_vectors(batch)
        return instances @ labels.T

    def label_keys(self, vectors: Floats) -> Floats:
        """Return z^ of all labels, [L, d]."""
        table = self.head.sharding.gather(self.head.weight.detach())  # [K, d]
        auxiliary = table[self.head.clusters].cpu()  # [L, d]
        texts = torch.from_numpy(vectors)
        keys: Floats = augmented(texts=texts, auxiliary=auxiliary, gamma=self._gamma).numpy()
        return keys


class Dexa(AugmentedLabels):
    """Trains the encoder and the auxiliary vectors."""

    def loss(self, batch: EncodedBatch) -> Tensor:
        """Return the triplet loss over the pool's augmented labels."""
        return batch.triplet(
            self.label_scores(batch), margin=self._settings.margin, hardest=self._settings.hardest
        )


def augmented(*, texts: Tensor, auxiliary: Tensor, gamma: float) -> Tensor:
    """Return z^ = normalize(E(z) + gamma e), unit vectors [n, d]."""
    return normalize(texts + gamma * auxiliary, dim=-1)


def clusters_of(vectors: Floats, *, size: int) -> Rows:
    """Return the number of each label's cluster [L], from the label vectors [L, d].

    A cluster has at most `size` labels, whose vectors are close to each other.
    """
    if size == 1:
        return np.arange(len(vectors), dtype=np.int64)
    numbers = np.empty(len(vectors), np.int64)
    rng = np.random.default_rng(0)
    for number, members in enumerate(balanced_clusters(vectors, size=size, rng=rng)):
        numbers[members] = number
    return numbers


def build(settings: Settings, task: Task) -> Dexa:
    """Return the system: clusters of the untrained label vectors, auxiliary vectors of zeros."""
    clusters = clusters_of(task.label_vectors(), size=settings.cluster_size)
    head = AuxiliaryVectors(clusters, dimension=task.dimension, sharding=task.sharding)
    return Dexa(settings, head, gamma=settings.gamma)

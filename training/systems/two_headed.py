"""The base of systems with two heads, whose label keys are [D(z_l); Psi_l].

A recipe's table `[heads]` adds the heads (`training.models.two_heads`). D is compared with D of a
label's text, C with the label's classifier Psi_l. A label without training rows keeps C(z_l).

Shapes: n texts, L labels, e dimensions of D, c of C and Psi.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from pydantic.dataclasses import dataclass
from torch import Tensor
from torch.nn.functional import normalize

from service.core.config import STRICT
from service.core.errors import InvalidConfig
from service.core.types import Floats
from training.datasets.propensity import label_frequency
from training.models.class_means import class_means
from training.models.sharding import TABLE, ClassifierTable, Sharding
from training.models.two_heads import TwoHeads
from training.systems.system import EncodedBatch, KeySettings, System, Task

Initial = Literal["texts", "queries", "random"]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class TwoHeadedSettings(KeySettings):
    """Psi starts as C of the label's text (`initial = "texts"`) or at random.

    With `initial = "queries"`, it starts as the mean of that and C of the label's queries.
    """

    initial: Initial = "texts"


class SeenClassifiers(ClassifierTable):
    """Psi, and a mark for each label that has training rows."""

    def __init__(self, initial: Tensor, seen: Tensor, *, learned: bool, sharding: Sharding) -> None:
        super().__init__(initial, learned=learned, sharding=sharding)
        self.register_buffer("seen", seen)  # [L]


class TwoHeaded(System):
    """A system that trains Psi, and also the encoder and its heads unless they are frozen."""

    head: SeenClassifiers
    sharded_parameters = (TABLE,)
    heads: TwoHeads

    def __init__(
        self, settings: TwoHeadedSettings, task: Task, *, name: str, learned: bool = True
    ) -> None:
        """Raise `InvalidConfig` if the encoder has no heads."""
        if task.heads is None:
            raise InvalidConfig(
                f"system {name} needs the table [heads], with encoder and classifier"
            )
        self.heads, self.choose_novel = task.heads, settings.choose_novel
        self.head = SeenClassifiers(
            _first_rows(task, self.heads, settings.initial),
            torch.from_numpy(label_frequency(task.labels_of) > 0),
            learned=learned,
            sharding=task.sharding,
        )
        self.heads.apart = True

    def halves(self, vectors: Tensor) -> tuple[Tensor, Tensor]:
        """Split [D; C] [n, e + c] into D [n, e], normalized, and C [n, c], not normalized."""
        encoded, classified = vectors.split([self.heads.encoder, self.heads.classifier], dim=-1)
        return normalize(encoded, dim=-1), classified

    def text_vectors(self, batch: EncodedBatch) -> tuple[Tensor, Tensor]:
        """Return only D: C is compared with Psi, for which an oracle has no vectors."""
        return self.halves(batch.instances)[0], self.halves(batch.labels)[0]

    def neighbour_vectors(self, vectors: Floats) -> Floats:
        """Return only D [n, e]: UniDEC mines hard negatives with an index of D(z)."""
        encoded = vectors[:, : self.heads.encoder]
        unit: Floats = encoded / np.maximum(np.linalg.norm(encoded, axis=1, keepdims=True), 1e-12)
        return unit

    def label_keys(self, vectors: Floats) -> Floats:
        """Return [D(z_l); Psi_l], given the vectors [L, e + c] of the labels' texts.

        Psi_l is scaled to the length of C(z_l). Labels without training rows keep C(z_l).
        """
        classifiers = normalize(self.head.sharding.gather(self.head.weight.detach()), dim=-1)
        seen = self.head.seen.cpu().numpy()
        keys = vectors.copy()
        lengths = np.linalg.norm(vectors[seen, self.heads.encoder :], axis=1, keepdims=True)
        keys[seen, self.heads.encoder :] = lengths * classifiers.cpu().numpy()[seen]
        return keys


def _first_rows(task: Task, heads: TwoHeads, initial: Initial) -> Tensor:
    """Return the initial Psi [L, c], normalized: C of texts, its mean with queries', or random."""
    if initial == "random":
        generator = torch.Generator().manual_seed(0)
        return normalize(torch.randn(task.labels, heads.classifier, generator=generator), dim=-1)
    texts = task.label_vectors()[:, heads.encoder :]
    if initial == "queries":
        instances = task.instance_vectors()[:, heads.encoder :]
        texts = class_means(task.labels_of, instances, texts, text_weight=1.0)
    return normalize(torch.from_numpy(np.ascontiguousarray(texts)), dim=-1)

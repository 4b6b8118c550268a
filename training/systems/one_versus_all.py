"""One-versus-all classifiers: a row of W for each label, learned by binary cross-entropy.

OvA-BCE trains encoder and classifiers together. With `[encoder] frozen` and `initial = "labels"` it
is NGAME's second stage: classifiers that start from the label embeddings. OvA+kNN is trained alike
and predicts by RAE-XMC's Eq. 11 with W in place of Z.

Shapes: P labels of the pool, L labels, d dimensions.
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from service.core.config import STRICT, Positive
from service.core.types import Floats
from training.systems.losses import one_versus_all
from training.systems.system import EncodedBatch, SystemDefaults, Task


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings:
    """A logit is `scale` times an inner product of unit vectors plus a bias, at first `bias`."""

    initial: Literal["random", "labels"] = "random"
    scale: Positive = 20.0
    bias: float = -10.0


class OneVersusAllHead(nn.Module):  # type: ignore[misc]
    """W [L, d] and the bias; rows of W are used as unit vectors, so that they can be searched."""

    def __init__(self, initial: Tensor, *, bias: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(initial)
        self.bias = nn.Parameter(torch.tensor(bias))

    def forward(self, pool: Tensor) -> Tensor:
        """The classifiers of the pool, [P, d] unit vectors."""
        return nn.functional.normalize(self.weight[pool], dim=-1)


class OneVersusAll(SystemDefaults):
    """Trains W, and the encoder unless it is frozen."""

    encodes_labels = False

    def __init__(self, settings: Settings, head: OneVersusAllHead) -> None:
        self._settings, self.head = settings, head

    def loss(self, batch: EncodedBatch) -> Tensor:
        """Binary cross-entropy over the pool."""
        similarities = batch.instances @ self.head(batch.pool).T
        return one_versus_all(
            logits=self._settings.scale * similarities + self.head.bias,
            positives=batch.positives,
            negatives=batch.negatives,
        )

    def label_keys(self, vectors: Floats) -> Floats:
        """The rows of W as unit vectors, in place of the label vectors."""
        weight = self.head.weight.detach()
        keys: Floats = nn.functional.normalize(weight, dim=-1).cpu().numpy()
        return keys


def build(settings: Settings, task: Task) -> OneVersusAll:
    """The system with untrained classifiers: random, or the label vectors."""
    if settings.initial == "labels":
        initial = torch.from_numpy(task.label_vectors())
    else:
        generator = torch.Generator().manual_seed(0)
        initial = torch.randn(task.labels, task.dimension, generator=generator)
        initial = nn.functional.normalize(initial, dim=-1)
    return OneVersusAll(settings, OneVersusAllHead(initial, bias=settings.bias))

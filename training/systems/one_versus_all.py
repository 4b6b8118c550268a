"""One-versus-all classifiers: a row of W for each label, learned by binary cross-entropy.

OvA-BCE trains encoder and classifiers together. With `[encoder] frozen` and `initial = "labels"` it
is NGAME's second stage: classifiers that start from the label embeddings. OvA+kNN is the same
training; it differs in prediction (RAE-XMC Eq. 11 with W in place of Z).
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from service.core.config import STRICT, Positive
from service.core.types import Floats
from training.systems import Encoded, NothingOfItsOwn, Task
from training.systems.losses import one_versus_all


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings:
    """`scale` turns an inner product of unit vectors into a logit; `bias` is its start."""

    initial: Literal["random", "labels"] = "random"
    scale: Positive = 20.0
    bias: float = -10.0


class Classifiers(nn.Module):  # type: ignore[misc]
    """W [L, d], used as unit vectors, so that they can be searched like every other key."""

    def __init__(self, initial: Tensor, *, bias: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(initial)
        self.bias = nn.Parameter(torch.tensor(bias))

    def forward(self, pool: Tensor) -> Tensor:
        """The classifiers of the pool, [P, d] unit vectors."""
        return nn.functional.normalize(self.weight[pool], dim=-1)


class OneVersusAll(NothingOfItsOwn):
    """W, and the encoder unless it is frozen."""

    encodes_labels = False
    sparse = ()

    def __init__(self, settings: Settings, classifiers: Classifiers) -> None:
        self._settings = settings
        self.own = classifiers

    def loss(self, batch: Encoded) -> Tensor:
        """Binary cross-entropy over the pool."""
        similarities = batch.instances @ self.own(batch.pool).T
        return one_versus_all(
            logits=self._settings.scale * similarities + self.own.bias,
            positives=batch.positives,
            negatives=batch.negatives,
        )

    def label_keys(self, vectors: Floats) -> Floats:
        """W as unit vectors: classifiers stand where an encoder's labels would."""
        weight = self.own.weight.detach()
        found: Floats = nn.functional.normalize(weight, dim=-1).cpu().numpy()
        return found


def build(settings: Settings, task: Task) -> OneVersusAll:
    """See `systems.build`."""
    if settings.initial == "labels":
        initial = torch.from_numpy(task.label_vectors())
    else:
        generator = torch.Generator().manual_seed(0)
        initial = torch.randn(task.labels, task.dimension, generator=generator)
        initial = nn.functional.normalize(initial, dim=-1)
    return OneVersusAll(settings, Classifiers(initial, bias=settings.bias))

"""One-versus-all classifiers: a row of W for each label, learned by binary cross-entropy.

OvA-BCE trains encoder and classifiers together. OvA+kNN is trained alike and predicts by RAE-XMC's
Eq. 11 with W in place of Z. Renee (Jain et al., MLSys 2023) begins with NGAME's encoder, has all
labels in every step (`[batch] pool = "all"`), and computes their products in half precision.

Shapes: B instances, P labels of the pool, L labels, d dimensions.
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from service.core.config import STRICT, Positive
from service.core.types import Floats
from training.models.precision import supported_precision
from training.systems.losses import one_versus_all
from training.systems.system import EncodedBatch, SystemDefaults, Task


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings:
    """A logit is `scale` times an inner product of unit vectors plus a bias, at first `bias`.

    W starts at random or as the label vectors. With `hybrid_precision` the inner products, and the
    gradients through them, are computed in bf16 where the hardware has it; W and the loss stay in
    fp32.
    """

    initial: Literal["random", "labels"] = "random"
    scale: Positive = 20.0
    bias: float = -10.0
    hybrid_precision: bool = False


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
    has_logits = True

    def __init__(self, settings: Settings, head: OneVersusAllHead) -> None:
        self._settings, self.head = settings, head
        half = settings.hybrid_precision and supported_precision("auto") == "bf16"
        self._precision = torch.bfloat16 if half else torch.float32

    def loss(self, batch: EncodedBatch) -> Tensor:
        """Binary cross-entropy over the pool."""
        return one_versus_all(
            logits=self.logits(batch), positives=batch.positives, negatives=batch.negatives
        )

    def logits(self, batch: EncodedBatch) -> Tensor:
        """Those of the classifiers, [B, P]."""
        products = similarities(
            instances=batch.instances, classifiers=self.head(batch.pool), precision=self._precision
        )  # [B, P]
        return self._settings.scale * products + self.head.bias

    def label_keys(self, vectors: Floats) -> Floats:
        """The rows of W as unit vectors, in place of the label vectors."""
        weight = self.head.weight.detach()
        keys: Floats = nn.functional.normalize(weight, dim=-1).cpu().numpy()
        return keys


def similarities(*, instances: Tensor, classifiers: Tensor, precision: torch.dtype) -> Tensor:
    """<x, w_l> in fp32, [B, P], multiplied in `precision`; so are its gradients."""
    return (instances.to(precision) @ classifiers.to(precision).T).float()


def build(settings: Settings, task: Task) -> OneVersusAll:
    """The system with untrained classifiers: random, or the label vectors."""
    if settings.initial == "labels":
        initial = torch.from_numpy(task.label_vectors())
    else:
        generator = torch.Generator().manual_seed(0)
        initial = torch.randn(task.labels, task.dimension, generator=generator)
        initial = nn.functional.normalize(initial, dim=-1)
    return OneVersusAll(settings, OneVersusAllHead(initial, bias=settings.bias))

"""One-versus-all classifiers: a row of W for each label, learned by binary cross-entropy.

OvA-BCE trains encoder and classifiers together. OvA+kNN is trained in the same way, but predicts by
RAE-XMC's Eq. 11 with W instead of Z. Renee (Jain et al., MLSys 2023) starts from NGAME's encoder,
uses all labels in every step (`[batch] pool = "all"`), and multiplies in half precision.

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
from training.systems.system import EncodedBatch, System, Task


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings:
    """A logit is `scale` times an inner product of unit vectors plus a bias that starts at `bias`.

    W starts at random or as the label vectors. With `hybrid_precision`, the inner products and
    their gradients are computed in bf16 if the hardware supports it; W and the loss stay in fp32.
    """

    initial: Literal["random", "labels"] = "random"
    scale: Positive = 20.0
    bias: float = -10.0
    hybrid_precision: bool = False


class OneVersusAllHead(nn.Module):  # type: ignore[misc]
    """W [L, d] and the bias; rows of W are normalized before use, so they can be search keys."""

    def __init__(self, initial: Tensor, *, bias: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(initial)
        self.bias = nn.Parameter(torch.tensor(bias))

    def forward(self, pool: Tensor) -> Tensor:
        """Return the classifiers of the pool as unit vectors [P, d]."""
        return nn.functional.normalize(self.weight[pool], dim=-1)


class OneVersusAll(System):
    """Trains W, and the encoder unless it is frozen."""

    head: OneVersusAllHead
    encodes_labels = False

    def __init__(self, settings: Settings, head: OneVersusAllHead) -> None:
        self._settings, self.head = settings, head
        half = settings.hybrid_precision and supported_precision("auto") == "bf16"
        self._precision = torch.bfloat16 if half else torch.float32

    def loss(self, batch: EncodedBatch) -> Tensor:
        """Return the binary cross-entropy over the pool."""
        products = similarities(
            instances=batch.instances, classifiers=self.head(batch.pool), precision=self._precision
        )  # [B, P]
        logits = self._settings.scale * products + self.head.bias
        return one_versus_all(logits=logits, positives=batch.positives, negatives=batch.negatives)

    def label_keys(self, vectors: Floats) -> Floats:
        """Return the rows of W as unit vectors; the label vectors are not used."""
        weight = self.head.weight.detach()
        keys: Floats = nn.functional.normalize(weight, dim=-1).cpu().numpy()
        return keys


def similarities(*, instances: Tensor, classifiers: Tensor, precision: torch.dtype) -> Tensor:
    """Return <x, w_l> [B, P] in fp32; products and gradients are computed in `precision`."""
    return (instances.to(precision) @ classifiers.to(precision).T).float()


def build(settings: Settings, task: Task) -> OneVersusAll:
    """Return the system with untrained classifiers: random, or the label vectors."""
    if settings.initial == "labels":
        initial = torch.from_numpy(task.label_vectors())
    else:
        generator = torch.Generator().manual_seed(0)
        initial = torch.randn(task.labels, task.dimension, generator=generator)
        initial = nn.functional.normalize(initial, dim=-1)
    return OneVersusAll(settings, OneVersusAllHead(initial, bias=settings.bias))

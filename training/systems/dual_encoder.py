"""Dual encoders by the softmax over labels: DPR, ANCE and DEXML differ in their recipes only.

    DPR    (Karpukhin et al.)  the batch's own positives as negatives of each other
    ANCE   (Xiong et al.)      and hard negatives, mined again and again with the present encoder
    DEXML  (Gupta et al.)      all labels in the denominator, through a gradient cache

Positives of an instance never act as its negatives, in none of the three (DEXML's decoupling).
"""

from __future__ import annotations

from pydantic.dataclasses import dataclass
from torch import Tensor

from service.core.config import STRICT, Positive
from training.systems import Encoded, EncoderAlone, Task
from training.systems.losses import decoupled_softmax


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings:
    """`tau` is the softmax's temperature."""

    tau: Positive = 0.04


class DualEncoder(EncoderAlone[Settings]):
    """Trained by the softmax over the labels of a pool."""

    def loss(self, batch: Encoded) -> Tensor:
        """RAE-XMC Eq. 9 over the pool."""
        return decoupled_softmax(
            label_scores=batch.label_scores,
            sampled=batch.sampled,
            negatives=batch.negatives,
            tau=self._settings.tau,
        )


def build(settings: Settings, task: Task) -> DualEncoder:
    """See `systems.build`."""
    return DualEncoder(settings)

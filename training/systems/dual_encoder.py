"""Dual encoders trained by the softmax over labels: DPR, ANCE and DEXML differ in their recipes.

    DPR    (Karpukhin et al.)  negatives are the other instances' positives in the batch
    ANCE   (Xiong et al.)      plus hard negatives, mined repeatedly with the present encoder
    DEXML  (Gupta et al.)      all labels in the denominator, through a gradient cache

In all three an instance's positives never act as its negatives (DEXML's decoupling).
"""

from __future__ import annotations

from pydantic.dataclasses import dataclass
from torch import Tensor

from service.core.config import STRICT, Positive
from training.systems.losses import decoupled_softmax
from training.systems.system import EncodedBatch, EncoderOnly, Task


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings:
    """`tau` is the temperature of the softmax."""

    tau: Positive = 0.04


class DualEncoder(EncoderOnly[Settings]):
    """A dual encoder trained by the softmax over the pool's labels."""

    has_logits = True

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.memory_tau = settings.tau

    def loss(self, batch: EncodedBatch) -> Tensor:
        """RAE-XMC Eq. 9 over the pool."""
        return decoupled_softmax(
            label_scores=batch.label_scores,
            sampled=batch.sampled,
            negatives=batch.negatives,
            tau=self._settings.tau,
        )

    def logits(self, batch: EncodedBatch) -> Tensor:
        """Of a label's text against the texts of the negatives, [B, P]."""
        return batch.label_logits(tau=self._settings.tau)


def build(settings: Settings, task: Task) -> DualEncoder:
    """The system; the task is not needed."""
    return DualEncoder(settings)

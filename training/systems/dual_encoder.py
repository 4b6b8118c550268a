"""Dual encoders trained by the softmax over labels: DPR, ANCE and DEXML differ in their recipes.

    DPR    (Karpukhin et al.)  negatives are the other instances' positives in the batch
    ANCE   (Xiong et al.)      plus hard negatives, mined repeatedly with the current encoder
    DEXML  (Gupta et al.)      all labels in the denominator, through a gradient cache

In all three an instance's positives never act as its negatives (DEXML's decoupling).
"""

from __future__ import annotations

from pydantic.dataclasses import dataclass
from torch import Tensor

from service.core.config import STRICT, Positive
from training.systems.system import EncodedBatch, EncoderOnly, Task


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings:
    """`tau` is the temperature of the softmax."""

    tau: Positive = 0.04


class DualEncoder(EncoderOnly[Settings]):
    """A dual encoder trained by the softmax over the pool's labels."""

    def __init__(self, settings: Settings, task: Task) -> None:
        super().__init__(settings, task)
        self.memory_tau = settings.tau

    def loss(self, batch: EncodedBatch) -> Tensor:
        """Return RAE-XMC's Eq. 9 over the pool."""
        return batch.decoupled_softmax(batch.label_scores, tau=self._settings.tau)


build = DualEncoder

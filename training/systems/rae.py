"""RAE-XMC (Chang et al.): a dual encoder contrasted over instances and labels together.

Training is Eq. 10: each instance with one sampled positive against m hard negatives and everything
else in the batch. Prediction (Eq. 7) is that of the serving memory. Table 3's ablations are
`in_batch_instances = false` and `batch.hard_negatives = 0`.
"""

from __future__ import annotations

from pydantic.dataclasses import dataclass
from torch import Tensor

from service.core.config import STRICT, Positive
from training.systems.losses import decoupled_softmax
from training.systems.system import EncodedBatch, EncoderOnly, Task


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings:
    """`tau` is the temperature (.04 in the paper, about 1 / sqrt(d))."""

    tau: Positive = 0.04
    in_batch_instances: bool = True


class RetrievalAugmentedEncoder(EncoderOnly[Settings]):
    """A dual encoder trained by Eq. 10."""

    has_logits = True

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.memory_tau = settings.tau

    def loss(self, batch: EncodedBatch) -> Tensor:
        """Eq. 10, or Eq. 9 where the batch's instances are left out."""
        if not self._settings.in_batch_instances:
            return decoupled_softmax(
                label_scores=batch.label_scores,
                sampled=batch.sampled,
                negatives=batch.negatives,
                tau=self._settings.tau,
            )
        return batch.contrast_with_instances(tau=self._settings.tau)

    def logits(self, batch: EncodedBatch) -> Tensor:
        """Of a label's text against the texts of the negatives, [B, P]."""
        return batch.label_logits(tau=self._settings.tau)


def build(settings: Settings, task: Task) -> RetrievalAugmentedEncoder:
    """The system; the task is not needed."""
    return RetrievalAugmentedEncoder(settings)

"""RAE-XMC (Chang et al.): a dual encoder contrasted over instances and labels together.

Training minimizes Eq. 10: an instance and one sampled positive are contrasted with m hard negatives
and everything else in the batch. The memory predicts by Eq. 7. Table 3's ablations are
`in_batch_instances = false` and `batch.hard_negatives = 0`.
"""

from __future__ import annotations

from pydantic.dataclasses import dataclass
from torch import Tensor

from service.core.config import STRICT, Positive
from training.systems.system import EncodedBatch, EncoderOnly, Task


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings:
    """`tau` is the temperature (.04 in the paper, about 1 / sqrt(d))."""

    tau: Positive = 0.04
    in_batch_instances: bool = True


class RetrievalAugmentedEncoder(EncoderOnly[Settings]):
    """A dual encoder trained by Eq. 10."""

    def __init__(self, settings: Settings, task: Task) -> None:
        super().__init__(settings, task)
        self.memory_tau = settings.tau

    def loss(self, batch: EncodedBatch) -> Tensor:
        """Return Eq. 10, or Eq. 9 if the batch's instances are left out."""
        if not self._settings.in_batch_instances:
            return batch.decoupled_softmax(batch.label_scores, tau=self._settings.tau)
        return batch.contrast_with_instances(tau=self._settings.tau)


build = RetrievalAugmentedEncoder

"""RAE-XMC (Chang et al.): a dual encoder that is contrasted over instances and labels together.

Training is Eq. 10: each instance with one drawn positive, m hard negatives, and everything else in
the batch. Prediction (Eq. 7) is the serving memory's own. Table 3's ablations are
`in_batch_instances = false` and `batch.hard_negatives = 0`.
"""

from __future__ import annotations

from pydantic.dataclasses import dataclass
from torch import Tensor

from service.core.config import STRICT, Positive
from training.systems import Encoded, EncoderAlone, Task
from training.systems.losses import contrast_with_instances, decoupled_softmax


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings:
    """`tau` is the temperature (.04 in the paper, about 1 / sqrt(d))."""

    tau: Positive = 0.04
    in_batch_instances: bool = True


class RetrievalAugmentedEncoder(EncoderAlone[Settings]):
    """Trained by Eq. 10."""

    def loss(self, batch: Encoded) -> Tensor:
        """Eq. 10; Eq. 9 without the batch's instances."""
        if not self._settings.in_batch_instances:
            return decoupled_softmax(
                label_scores=batch.label_scores,
                sampled=batch.sampled,
                negatives=batch.negatives,
                tau=self._settings.tau,
            )
        return contrast_with_instances(
            label_scores=batch.label_scores,
            instance_scores=batch.instance_scores,
            sampled=batch.sampled,
            negatives=batch.negatives,
            strangers=batch.strangers,
            tau=self._settings.tau,
        )


def build(settings: Settings, task: Task) -> RetrievalAugmentedEncoder:
    """See `systems.build`."""
    return RetrievalAugmentedEncoder(settings)

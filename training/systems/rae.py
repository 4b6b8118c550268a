"""RAE-XMC (Chang et al.): a dual encoder that is contrasted over instances and labels together.

Training is Eq. 10: each instance with one drawn positive, m hard negatives, and everything else in
the batch. Prediction (Eq. 7) is the serving memory's own. Table 3's ablations are
`in_batch_instances = false` and `batch.hard_negatives = 0`.

Beyond the paper, `positives = "pool"` contrasts every positive that the pool happens to hold, as
the sum of Eq. 10 has it before one is drawn, and `objective = "likelihood"` maximises Eq. 2 itself.
"""

from __future__ import annotations

from typing import Literal

from pydantic.dataclasses import dataclass
from torch import Tensor

from service.core.config import STRICT, Positive
from training.losses import contrast_with_instances, decoupled_softmax, memory_likelihood
from training.systems import Encoded, Task


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings:
    """`tau` is the temperature (.04 in the paper, about 1 / sqrt(d))."""

    tau: Positive = 0.04
    in_batch_instances: bool = True
    positives: Literal["drawn", "pool"] = "drawn"
    objective: Literal["contrast", "likelihood"] = "contrast"


class RetrievalAugmentedEncoder:
    """The encoder alone has parameters."""

    encodes_labels = True
    trains_encoder = True
    own = None

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def loss(self, batch: Encoded) -> Tensor:
        """Eq. 10; Eq. 9 without the batch's instances; or Eq. 2."""
        tau = self._settings.tau
        if self._settings.objective == "likelihood":
            return memory_likelihood(
                label_scores=batch.label_scores,
                instance_scores=batch.instance_scores,
                positives=batch.positives,
                negatives=batch.negatives,
                strangers=batch.strangers,
                tau=tau,
            )
        wanted = batch.sampled if self._settings.positives == "drawn" else batch.positives
        if not self._settings.in_batch_instances:
            return decoupled_softmax(
                label_scores=batch.label_scores,
                sampled=wanted,
                negatives=batch.negatives,
                tau=tau,
            )
        return contrast_with_instances(
            label_scores=batch.label_scores,
            instance_scores=batch.instance_scores,
            sampled=wanted,
            negatives=batch.negatives,
            strangers=batch.strangers,
            tau=tau,
        )


def build(settings: Settings, task: Task) -> RetrievalAugmentedEncoder:
    """See `systems.build`."""
    return RetrievalAugmentedEncoder(settings)

"""SupconDE: UniDEC's pick-some-labels loss on the dual encoder alone, in both directions.

L_D = .5 L_q2l + .5 L_l2q, over the label pool of a batch of similar instances
"""

from __future__ import annotations

from pydantic.dataclasses import dataclass
from torch import Tensor

from service.core.config import STRICT, Positive, Share
from training.systems import Encoded, EncoderAlone, Task
from training.systems.losses import pick_some_labels


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings:
    """`queries` is the weight of L_q2l against L_l2q, one half in the paper."""

    tau: Positive = 0.05
    queries: Share = 0.5


class SupconDualEncoder(EncoderAlone[Settings]):
    """Trained by the pick-some-labels loss."""

    def loss(self, batch: Encoded) -> Tensor:
        """L_D of UniDEC."""
        scores, share = batch.label_scores, self._settings.queries
        to_labels = pick_some_labels(
            scores=scores,
            positives=batch.positives,
            negatives=batch.negatives,
            tau=self._settings.tau,
        )
        to_instances = pick_some_labels(
            scores=scores.T,
            positives=batch.positives.T,
            negatives=batch.negatives.T,
            tau=self._settings.tau,
        )
        return share * to_labels + (1.0 - share) * to_instances


def build(settings: Settings, task: Task) -> SupconDualEncoder:
    """See `systems.build`."""
    return SupconDualEncoder(settings)

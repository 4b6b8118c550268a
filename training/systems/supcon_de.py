"""SupconDE: UniDEC's dual encoder without its classifiers.

Its pick-some-labels loss runs in both directions, over the label pool of a batch of similar
instances:

    L_D = .5 L_q2l + .5 L_l2q
"""

from __future__ import annotations

from pydantic.dataclasses import dataclass
from torch import Tensor

from service.core.config import STRICT, Positive, Share
from training.systems.losses import pick_some_labels
from training.systems.system import EncodedBatch, EncoderOnly, Task


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings:
    """`queries` is the weight of L_q2l; L_l2q has the rest (one half in the paper)."""

    tau: Positive = 0.05
    queries: Share = 0.5


class SupconDualEncoder(EncoderOnly[Settings]):
    """A dual encoder trained by the pick-some-labels loss."""

    has_logits = True

    def loss(self, batch: EncodedBatch) -> Tensor:
        """L_D of UniDEC."""
        scores, share = batch.label_scores, self._settings.queries
        to_labels = pick_some_labels(
            scores=scores,
            targets=batch.positives,
            candidates=batch.candidates,
            tau=self._settings.tau,
        )
        to_instances = pick_some_labels(
            scores=scores.T,
            targets=batch.positives.T,
            candidates=batch.candidates.T,
            tau=self._settings.tau,
        )
        return share * to_labels + (1.0 - share) * to_instances

    def logits(self, batch: EncodedBatch) -> Tensor:
        """Of a label's text against the texts of the negatives, [B, P]."""
        return batch.label_logits(tau=self._settings.tau)


def build(settings: Settings, task: Task) -> SupconDualEncoder:
    """The system; the task is not needed."""
    return SupconDualEncoder(settings)

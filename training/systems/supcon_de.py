"""SupconDE: UniDEC's dual encoder without its classifiers.

Its pick-some-labels loss runs in both directions, over the label pool of a batch of similar
instances:

    L_D = .5 L_q2l + .5 L_l2q
"""

from __future__ import annotations

from pydantic.dataclasses import dataclass
from torch import Tensor

from service.core.config import STRICT, Positive, Share
from training.systems.losses import pick_some_both_ways
from training.systems.system import EncodedBatch, EncoderOnly


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings:
    """`queries` is the weight of L_q2l, 1 - `queries` that of L_l2q (one half in the paper)."""

    tau: Positive = 0.05
    queries: Share = 0.5


class SupconDualEncoder(EncoderOnly[Settings]):
    """A dual encoder trained by the pick-some-labels loss."""

    def loss(self, batch: EncodedBatch) -> Tensor:
        """Return UniDEC's L_D."""
        return pick_some_both_ways(
            scores=batch.label_scores,
            targets=batch.positives,
            candidates=batch.candidates,
            tau=self._settings.tau,
            queries=self._settings.queries,
        )


build = SupconDualEncoder

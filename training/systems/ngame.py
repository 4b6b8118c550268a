"""NGAME's encoder stage (Dahiya et al.): triplets over batches of similar instances.

The recipe's `batch.order = "clustered"` makes the batches, so that other instances' positives are
hard negatives without mining.
"""

from __future__ import annotations

from pydantic.dataclasses import dataclass
from torch import Tensor

from service.core.config import STRICT, Count, Positive
from training.systems import Encoded, EncoderAlone, Task
from training.systems.losses import triplet


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings:
    """`margin` between positive and negative; the `hardest` in-batch negatives count."""

    margin: Positive = 0.3
    hardest: Count = 10


class NgameEncoder(EncoderAlone[Settings]):
    """Trained by triplets."""

    def loss(self, batch: Encoded) -> Tensor:
        """The triplet loss over the pool."""
        return triplet(
            label_scores=batch.label_scores,
            sampled=batch.sampled,
            negatives=batch.negatives,
            margin=self._settings.margin,
            hardest=self._settings.hardest,
        )


def build(settings: Settings, task: Task) -> NgameEncoder:
    """See `systems.build`."""
    return NgameEncoder(settings)

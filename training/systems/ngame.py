"""NGAME's encoder stage (Dahiya et al.): triplets over batches of similar instances.

The recipe's `batch.order = "clustered"` makes such batches: other instances' positives are then
hard negatives without mining.
"""

from __future__ import annotations

from pydantic.dataclasses import dataclass
from torch import Tensor

from service.core.config import STRICT, Count, Positive
from training.systems.system import EncodedBatch, EncoderOnly, Task


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings:
    """`margin` is between positive and negative; each instance counts its `hardest` negatives."""

    margin: Positive = 0.3
    hardest: Count = 10


class NgameEncoder(EncoderOnly[Settings]):
    """A dual encoder trained by triplets."""

    def loss(self, batch: EncodedBatch) -> Tensor:
        """The triplet loss over the pool."""
        return batch.triplet(
            batch.label_scores, margin=self._settings.margin, hardest=self._settings.hardest
        )


def build(settings: Settings, task: Task) -> NgameEncoder:
    """The system; the task is not needed."""
    return NgameEncoder(settings)

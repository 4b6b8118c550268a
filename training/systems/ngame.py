"""NGAME's encoder stage (Dahiya et al.): triplets over batches of similar instances.

The recipe's `batch.order = "clustered"` makes such batches. In them the positives of other
instances are hard negatives, so none need to be mined.
"""

from __future__ import annotations

from pydantic.dataclasses import dataclass
from torch import Tensor

from service.core.config import STRICT, Count, Positive
from training.systems.system import EncodedBatch, EncoderOnly


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings:
    """The `margin` between positive and negative, and the number of `hardest` negatives used."""

    margin: Positive = 0.3
    hardest: Count = 10


class NgameEncoder(EncoderOnly[Settings]):
    """A dual encoder trained by triplets."""

    def loss(self, batch: EncodedBatch) -> Tensor:
        """Return the triplet loss over the pool."""
        return batch.triplet(
            batch.label_scores, margin=self._settings.margin, hardest=self._settings.hardest
        )


build = NgameEncoder

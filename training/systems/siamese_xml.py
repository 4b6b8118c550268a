"""SiameseXML (Dahiya et al., ICML 2021): a siamese encoder, then classifiers that start from it.

The encoder comes from a first stage and stays frozen. A label's classifier is its vector plus a
free residual, at first zero, so that labels of few clicks stay close to their texts:

    w_l = normalize(E(z_l) + eta_l),    P(l is relevant to x) = c exp(d (<E(x), w_l> - 1))

The parts are DEXA's with one vector per label; only the loss differs: the likelihood of P. The
negatives are the labels in batches of similar instances; the paper searches for them instead. w_l
is the label's key. A posted label's key is the vector of its text, moved by the keys of similar
labels as far as that helps (`choose_novel`).

Shapes: B instances, P labels of the pool.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from service.core.config import STRICT, Positive
from training.systems.dexa import AugmentedLabels, AuxiliaryVectors, clusters_of
from training.systems.losses import probabilistic_contrast
from training.systems.system import EncodedBatch, KeySettings, Task


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings(KeySettings):
    """`certainty` is c, `steepness` d; negatives below the `threshold` do not count.

    The numbers are those of the authors' code.
    """

    certainty: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.75
    steepness: Positive = 3.0
    threshold: Annotated[float, Field(ge=0.0)] = 0.05


class SiameseXml(AugmentedLabels):
    """Trains eta, and the encoder unless it is frozen."""

    def loss(self, batch: EncodedBatch) -> Tensor:
        """Return the negative log-likelihood of the pool."""
        return probabilistic_contrast(
            label_scores=self.label_scores(batch),
            sampled=batch.sampled,
            negatives=batch.negatives,
            certainty=self._settings.certainty,
            steepness=self._settings.steepness,
            threshold=self._settings.threshold,
        )


def build(settings: Settings, task: Task) -> SiameseXml:
    """Return the system with residuals of zero, so that classifiers start as the label vectors."""
    clusters = clusters_of(task.label_vectors(), size=1)
    head = AuxiliaryVectors(clusters, dimension=task.dimension, sharding=task.sharding)
    return SiameseXml(settings, head, gamma=1.0)

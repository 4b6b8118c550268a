"""NGAME with classifiers (Dahiya et al., WSDM 2023): an encoder, then a classifier per label.

The first stage is `ngame`. In the second one the encoder is frozen. Each label gets a classifier
Psi_l, which starts as the label's vector and learns by the same triplets over batches of similar
instances. At the end the scores of both are fused. Two heads on the encoder (`two_headed`) keep
the stages apart: D stays the first stage's vector, C is compared with the classifiers.

    L = w L_D + (1 - w) L_C,    each sum [s(x, n) - s(x, p) + margin]_+ over the hardest negatives
    s(x, l) = share <D(x), D(z_l)> + (1 - share) <C(x), Psi_l>

With w = 0 the encoder stays that of the first stage; above 0, both learn in one run. The share is
chosen on held-out rows. The authors' code fuses by a decision tree over both scores and the label's
propensity. With a share, a label has one key, [D(z_l); Psi_l]. So do live labels, with C of their
text instead of Psi_l.

Shapes: B instances, P labels of the pool, e dimensions of D, c of C and Psi.
"""

from __future__ import annotations

from pydantic.dataclasses import dataclass
from torch import Tensor
from torch.nn.functional import normalize

from service.core.config import STRICT, Count, Positive, Share
from training.systems.system import EncodedBatch, Task
from training.systems.two_headed import TwoHeaded, TwoHeadedSettings


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings(TwoHeadedSettings):
    """`encoder_weight` is w; margins and hardest negatives are those of the authors' code."""

    encoder_weight: Share = 0.0
    margin: Positive = 0.3
    hardest: Count = 10
    classifier_margin: Positive = 0.2
    classifier_hardest: Count = 3


class NgameClassifiers(TwoHeaded):
    """Trains Psi and C and, if w is above 0, the encoder and D."""

    def __init__(self, settings: Settings, task: Task) -> None:
        super().__init__(settings, task, name="ngame-classifiers")
        self._settings = settings
        if not settings.encoder_weight and not self.heads.shared:
            self.heads.to_encoder.requires_grad_(False)

    def loss(self, batch: EncodedBatch) -> Tensor:
        """Return w L_D + (1 - w) L_C."""
        settings, weight = self._settings, self._settings.encoder_weight
        encoded, classified = self.halves(batch.instances)  # [B, e], [B, c]
        classifiers = self.head(batch.pool)  # [P, c]
        classifier_loss = batch.triplet(
            normalize(classified, dim=-1) @ classifiers.T,
            margin=settings.classifier_margin,
            hardest=settings.classifier_hardest,
        )
        if not weight:
            return classifier_loss
        of_texts, _ = self.halves(batch.labels)  # [P, e]
        encoder_loss = batch.triplet(
            encoded @ of_texts.T, margin=settings.margin, hardest=settings.hardest
        )
        return weight * encoder_loss + (1.0 - weight) * classifier_loss


build = NgameClassifiers

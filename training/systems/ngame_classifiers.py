"""NGAME with its classifiers (Dahiya et al., WSDM 2023): encoder first, then classifiers, fused.

The first stage is `ngame`. In the second one each label gets a classifier Psi_l, which starts as
the label's vector and learns by the same triplets over batches of similar instances, the encoder
being frozen. At the end the scores of both are fused. Two heads on the encoder (`two_headed`) hold
the stages apart: D stays the first stage's vector, C is compared with the classifiers.

    L = w L_D + (1 - w) L_C,    each sum [s(x, n) - s(x, p) + margin]_+ over the hardest negatives
    s(x, l) = share <D(x), D(z_l)> + (1 - share) <C(x), Psi_l>

With w = 0 the encoder is that of the first stage; above 0, both learn in one run. The share is
chosen on held-out rows. The authors' code fuses by a decision tree over both scores and the label's
propensity; a share can be served as one key a label, [D(z_l); Psi_l], and so can live labels, which
have C of their text in place of Psi_l.

Shapes: B instances, P labels of the pool, e dimensions of D, c of C and Psi.
"""

from __future__ import annotations

from pydantic.dataclasses import dataclass
from torch import Tensor
from torch.nn.functional import normalize

from service.core.config import STRICT, Count, Positive, Share
from training.models.two_heads import TwoHeads
from training.systems.system import EncodedBatch, Task
from training.systems.two_headed import (
    Initial,
    SeenClassifiers,
    TwoHeaded,
    heads_of_task,
    untrained_classifiers,
)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings:
    """`encoder_weight` is w; margins and hardest negatives are those of the authors' code.

    Psi starts as C of the label's text (`initial = "texts"`), as the mean of it and C of its
    queries (`"queries"`), or at random. At the end it takes minutes to choose how a novel label's
    key is made of those of similar labels; `choose_novel = false` leaves the key of its text.
    """

    encoder_weight: Share = 0.0
    margin: Positive = 0.3
    hardest: Count = 10
    classifier_margin: Positive = 0.2
    classifier_hardest: Count = 3
    initial: Initial = "texts"
    choose_novel: bool = True


class NgameClassifiers(TwoHeaded):
    """Trains Psi and C, and with w above 0 the encoder and D."""

    def __init__(self, settings: Settings, head: SeenClassifiers, heads: TwoHeads) -> None:
        super().__init__(head, heads, choose_novel=settings.choose_novel)
        self._settings = settings

    def loss(self, batch: EncodedBatch) -> Tensor:
        """w L_D + (1 - w) L_C."""
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


def build(settings: Settings, task: Task) -> NgameClassifiers:
    """The system before training; raises `InvalidConfig` for an encoder without heads."""
    heads = heads_of_task(task, system="ngame-classifiers")
    if not settings.encoder_weight and not heads.shared:
        heads.to_encoder.requires_grad_(False)
    head = untrained_classifiers(task, heads, initial=settings.initial, learned=True)
    return NgameClassifiers(settings, head, heads)

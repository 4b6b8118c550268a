"""UniDEC (Kharbanda et al.): a dual encoder and classifiers, trained together over one encoder.

The encoder's two heads are D, compared with D of a label's text, and C, compared with the label's
classifier Psi_l (`training.models.two_heads`; a recipe adds them by its table `[heads]`). The
pick-some-labels loss of a batch of similar instances runs on both, in both directions:

    L = lambda L_D + (1 - lambda) L_C,    L_D = q L_q2l + (1 - q) L_l2q, and L_C alike    (Eq. 5, 6)

A label's key is [D(z_l); Psi_l], and that of a label without training rows [D(z_l); C(z_l)]. With
`encoder_weight = 1` only D learns (SupconDE), with 0 only the classifiers.

Shapes: B instances, P labels of the pool, L labels, e dimensions of D, c of C and Psi.
"""

from __future__ import annotations

from typing import Literal

from pydantic.dataclasses import dataclass
from torch import Tensor
from torch.nn.functional import normalize

from service.core.config import STRICT, Positive, Share
from training.models.two_heads import TwoHeads
from training.systems.losses import against_negatives, pick_some_labels
from training.systems.system import EncodedBatch, Task
from training.systems.two_headed import (
    Initial,
    SeenClassifiers,
    TwoHeaded,
    heads_of_task,
    untrained_classifiers,
)

Reduction = Literal["pal-n", "pal", "pol"]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings:
    """The numbers of the loss, and the variants of Tables 5 to 7.

    `encoder_weight` is lambda, `queries` the weight of L_q2l against L_l2q. `normalized` compares
    unit vectors C and Psi, as the memory does; the paper trains them at any length. `reduction`
    sums over the positives of the pool by their mean (`pal-n`), by their sum (`pal`), or takes the
    sampled ones alone (`pol`). Psi starts as C of the label's text (`initial = "texts"`), as the
    mean of it and C of its queries (`"queries"`), or at random; `learn_classifiers = false` keeps
    it there. At the end it takes minutes to choose how a novel label's key is made of those of
    similar labels; `choose_novel = false` leaves the key of its text.
    """

    encoder_weight: Share = 0.5
    queries: Share = 0.5
    tau: Positive = 0.05
    classifier_tau: Positive = 0.05
    normalized: bool = True
    reduction: Reduction = "pal-n"
    initial: Initial = "texts"
    learn_classifiers: bool = True
    choose_novel: bool = True


class Unidec(TwoHeaded):
    """Trains the encoder with its two heads, and Psi."""

    has_logits = True

    def __init__(self, settings: Settings, head: SeenClassifiers, heads: TwoHeads) -> None:
        super().__init__(head, heads, choose_novel=settings.choose_novel)
        self._settings = settings

    def loss(self, batch: EncodedBatch) -> Tensor:
        """lambda L_D + (1 - lambda) L_C."""
        settings, weight = self._settings, self._settings.encoder_weight
        of_encoder, of_classifiers = self._scores(batch)
        encoder_loss = self._both_ways(of_encoder, batch, tau=settings.tau)
        classifier_loss = self._both_ways(of_classifiers, batch, tau=settings.classifier_tau)
        return weight * encoder_loss + (1.0 - weight) * classifier_loss

    def logits(self, batch: EncodedBatch) -> Tensor:
        """Of a label's classifier against those of the negatives, [B, P]; of D if it learns alone.

        The classifiers are what few rows of a label leave uncertain.
        """
        of_encoder, of_classifiers = self._scores(batch)
        alone = self._settings.encoder_weight == 1.0
        return against_negatives(
            scores=of_encoder if alone else of_classifiers,
            negatives=batch.negatives,
            tau=self._settings.tau if alone else self._settings.classifier_tau,
        )

    def _scores(self, batch: EncodedBatch) -> tuple[Tensor, Tensor]:
        """<D(x), D(z_l)> and <C(x), Psi_l>, [B, P] each."""
        encoded, classified = self._compared(batch.instances)  # [B, e], [B, c]
        of_texts, _ = self._compared(batch.labels)  # [P, e]
        table = self.head if self._settings.normalized else self.head.rows
        return encoded @ of_texts.T, classified @ table(batch.pool).T

    def _compared(self, vectors: Tensor) -> tuple[Tensor, Tensor]:
        """D as unit vectors [n, e] and C [n, c], whatever factor their concatenation has."""
        encoded, classified = self.halves(vectors)
        if self._settings.normalized:
            return encoded, normalize(classified, dim=-1)
        length = vectors[:, : self.heads.encoder].norm(dim=-1, keepdim=True)
        return encoded, classified / length

    def _both_ways(self, scores: Tensor, batch: EncodedBatch, *, tau: float) -> Tensor:
        """The pick-some-labels loss of scores [B, P], from queries to labels and back."""
        share, reduction = self._settings.queries, self._settings.reduction
        targets = batch.sampled if reduction == "pol" else batch.positives
        normalized = reduction != "pal"
        to_labels = pick_some_labels(
            scores=scores,
            targets=targets,
            candidates=batch.candidates,
            tau=tau,
            normalized=normalized,
        )
        to_instances = pick_some_labels(
            scores=scores.T,
            targets=targets.T,
            candidates=batch.candidates.T,
            tau=tau,
            normalized=normalized,
        )
        return share * to_labels + (1.0 - share) * to_instances


def build(settings: Settings, task: Task) -> Unidec:
    """The system before training; raises `InvalidConfig` for an encoder without heads."""
    heads = heads_of_task(task, system="unidec")
    head = untrained_classifiers(
        task, heads, initial=settings.initial, learned=settings.learn_classifiers
    )
    return Unidec(settings, head, heads)

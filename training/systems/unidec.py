"""UniDEC (Kharbanda et al.): a dual encoder and classifiers, trained together over one encoder.

The encoder's two heads are D, compared with D of a label's text, and C, compared with the label's
classifier Psi_l (`training.models.two_heads`; a recipe adds them by its table `[heads]`). The
pick-some-labels loss of a batch of similar instances runs on both, in both directions:

    L = lambda L_D + (1 - lambda) L_C,    L_D = q L_q2l + (1 - q) L_l2q, and L_C alike    (Eq. 5, 6)

A label's key is [D(z_l); Psi_l]; a label without training rows has [D(z_l); C(z_l)]. With
`encoder_weight = 1` only D learns (SupconDE), with 0 only the classifiers.

Shapes: B instances, P labels of the pool, L labels, e dimensions of D, c of C and Psi.
"""

from __future__ import annotations

from typing import Literal

from pydantic.dataclasses import dataclass
from torch import Tensor
from torch.nn.functional import normalize

from service.core.config import STRICT, Positive, Share
from training.systems.losses import pick_some_both_ways
from training.systems.system import EncodedBatch, Task
from training.systems.two_headed import TwoHeaded, TwoHeadedSettings

Reduction = Literal["pal-n", "pal", "pol"]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings(TwoHeadedSettings):
    """The numbers of the loss, and the variants of Tables 5 to 7.

    `encoder_weight` is lambda, `queries` is q. `normalized` compares unit vectors C and Psi, as
    the memory does; the paper trains them at any length. `reduction` takes the mean over the
    pool's positives (`pal-n`), their sum (`pal`), or only the sampled positives (`pol`).
    `learn_classifiers = false` keeps Psi where it starts.
    """

    encoder_weight: Share = 0.5
    queries: Share = 0.5
    tau: Positive = 0.05
    classifier_tau: Positive = 0.05
    normalized: bool = True
    reduction: Reduction = "pal-n"
    learn_classifiers: bool = True


class Unidec(TwoHeaded):
    """Trains the encoder with its two heads, and Psi."""

    def __init__(self, settings: Settings, task: Task) -> None:
        super().__init__(settings, task, name="unidec", learned=settings.learn_classifiers)
        self._settings = settings

    def loss(self, batch: EncodedBatch) -> Tensor:
        """Return lambda L_D + (1 - lambda) L_C."""
        settings, weight = self._settings, self._settings.encoder_weight
        of_encoder, of_classifiers = self._scores(batch)
        encoder_loss = self._both_ways(of_encoder, batch, tau=settings.tau)
        classifier_loss = self._both_ways(of_classifiers, batch, tau=settings.classifier_tau)
        return weight * encoder_loss + (1.0 - weight) * classifier_loss

    def _scores(self, batch: EncodedBatch) -> tuple[Tensor, Tensor]:
        """Return <D(x), D(z_l)> and <C(x), Psi_l>, [B, P] each."""
        encoded, classified = self._compared(batch.instances)  # [B, e], [B, c]
        of_texts, _ = self._compared(batch.labels)  # [P, e]
        table = self.head if self._settings.normalized else self.head.rows
        return encoded @ of_texts.T, classified @ table(batch.pool).T

    def _compared(self, vectors: Tensor) -> tuple[Tensor, Tensor]:
        """Return unit vectors D [n, e], and C [n, c] without the factor that scaled [D; C]."""
        encoded, classified = self.halves(vectors)
        if self._settings.normalized:
            return encoded, normalize(classified, dim=-1)
        length = vectors[:, : self.heads.encoder].norm(dim=-1, keepdim=True)
        return encoded, classified / length

    def _both_ways(self, scores: Tensor, batch: EncodedBatch, *, tau: float) -> Tensor:
        reduction = self._settings.reduction
        return pick_some_both_ways(
            scores=scores,
            targets=batch.sampled if reduction == "pol" else batch.positives,
            candidates=batch.candidates,
            tau=tau,
            queries=self._settings.queries,
            normalized=reduction != "pal",
        )


build = Unidec

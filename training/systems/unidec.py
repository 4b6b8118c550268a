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

from pathlib import Path
from typing import Literal

import numpy as np
import torch
from pydantic.dataclasses import dataclass
from torch import Tensor
from torch.nn.functional import normalize

from service.core.config import STRICT, Positive, Share
from service.core.errors import InvalidConfig
from service.core.types import Floats
from training.datasets.propensity import label_frequency
from training.models.class_means import class_means
from training.models.classifier_table import TABLE, ClassifierTable
from training.models.sharding import Sharding
from training.models.two_heads import TwoHeads
from training.systems.finished import choose_novel_by_keys
from training.systems.losses import pick_some_labels
from training.systems.system import EncodedBatch, FinishedTraining, SystemDefaults, Task

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
    initial: Literal["texts", "queries", "random"] = "texts"
    learn_classifiers: bool = True
    choose_novel: bool = True


class UnidecHead(ClassifierTable):
    """Psi, and which labels have a row that trains them."""

    def __init__(self, initial: Tensor, seen: Tensor, *, learned: bool, sharding: Sharding) -> None:
        super().__init__(initial, learned=learned, sharding=sharding)
        self.register_buffer("seen", seen)  # [L]


class Unidec(SystemDefaults):
    """Trains the encoder with its two heads, and Psi."""

    encodes_labels = True
    sharded_parameters = (TABLE,)
    heads: TwoHeads

    def __init__(self, settings: Settings, head: UnidecHead, heads: TwoHeads) -> None:
        self._settings, self.head, self.heads = settings, head, heads
        heads.apart = True

    def loss(self, batch: EncodedBatch) -> Tensor:
        """lambda L_D + (1 - lambda) L_C."""
        settings, weight = self._settings, self._settings.encoder_weight
        encoded, classified = self._halves(batch.instances)  # [B, e], [B, c]
        of_texts, _ = self._halves(batch.labels)  # [P, e]
        classifiers = (self.head if settings.normalized else self.head.rows)(batch.pool)  # [P, c]
        encoder_loss = self._both_ways(encoded @ of_texts.T, batch, tau=settings.tau)
        classifier_loss = self._both_ways(
            classified @ classifiers.T, batch, tau=settings.classifier_tau
        )
        return weight * encoder_loss + (1.0 - weight) * classifier_loss

    def _halves(self, vectors: Tensor) -> tuple[Tensor, Tensor]:
        """D as unit vectors [n, e] and C [n, c], whatever factor their concatenation has."""
        encoded, classified = vectors.split([self.heads.encoder, self.heads.classifier], dim=-1)
        if self._settings.normalized:
            return normalize(encoded, dim=-1), normalize(classified, dim=-1)
        return normalize(encoded, dim=-1), classified / encoded.norm(dim=-1, keepdim=True)

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

    def neighbour_vectors(self, vectors: Floats) -> Floats:
        """D alone, [n, e]: the paper mines hard negatives by an index of D(z)."""
        encoded = vectors[:, : self.heads.encoder]
        unit: Floats = encoded / np.maximum(np.linalg.norm(encoded, axis=1, keepdims=True), 1e-12)
        return unit

    def label_keys(self, vectors: Floats) -> Floats:
        """[D(z_l); Psi_l], from the vectors [L, e + c] of the labels' texts.

        Psi takes the length of C, whose place it takes. Labels without a row keep C(z_l).
        """
        classifiers = normalize(self.head.sharding.gather(self.head.weight.detach()), dim=-1)
        seen = self.head.seen.cpu().numpy()
        keys = vectors.copy()
        lengths = np.linalg.norm(vectors[seen, self.heads.encoder :], axis=1, keepdims=True)
        keys[seen, self.heads.encoder :] = lengths * classifiers.cpu().numpy()[seen]
        return keys

    def choose_settings(self, finished: FinishedTraining | None, folder: Path) -> str:
        """Choose how a novel label's key is made from those of similar labels, and from queries.

        The keys [D(z_l); Psi_l] of similar labels move the novel label's [D(z); C(z)].
        """
        if not self._settings.choose_novel:
            return ""
        return choose_novel_by_keys(finished, folder)


def build(settings: Settings, task: Task) -> Unidec:
    """The system before training; raises `InvalidConfig` for an encoder without heads."""
    heads = task.heads
    if heads is None:
        raise InvalidConfig("system unidec needs the table [heads], with encoder and classifier")
    seen = torch.from_numpy(label_frequency(task.labels_of) > 0)
    initial = _initial(settings, task, heads)
    head = UnidecHead(initial, seen, learned=settings.learn_classifiers, sharding=task.sharding)
    return Unidec(settings, head, heads)


def _initial(settings: Settings, task: Task, heads: TwoHeads) -> Tensor:
    """The first Psi, [L, c] unit vectors."""
    if settings.initial == "random":
        generator = torch.Generator().manual_seed(0)
        return normalize(torch.randn(task.labels, heads.classifier, generator=generator), dim=-1)
    texts = task.label_vectors()[:, heads.encoder :]
    if settings.initial == "queries":
        instances = task.instance_vectors()[:, heads.encoder :]
        texts = class_means(task.labels_of, instances, texts, text_weight=1.0)
    return normalize(torch.from_numpy(np.ascontiguousarray(texts)), dim=-1)

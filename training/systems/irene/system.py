"""IRENE's second stage (Yadav et al., section 4.2): classifiers W and combiner C, encoder frozen.

Stage I trains the encoder, with NGAME's loss in the paper (`encoder.stage_one` of the recipe, or
`--encoder`). Stage II learns from the same clicks a classifier for each label, and how to combine
the classifiers of similar labels for a label that has none:

    [s(E(x), w_n) - s(E(x), w_p) + gamma_1]_+ + [s(E(x), C(n)) - s(E(x), C(p)) + gamma_2]_+  (Eq. 3)

`objective` may also be `bce`, binary cross-entropy over the batch's labels as in public code, or
`softmax`, Eq. 9 of RAE-XMC over both kinds of scores.

Shapes: B instances, P labels of the pool, L labels, m associated labels, d dimensions.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor
from torch.nn.functional import normalize

from service.core.config import STRICT, Count, Positive
from service.core.encoding.irene import ASSOCIATED
from service.core.types import Bools, Floats
from training.checkpoints.choices import NovelChoices, write_novel
from training.models.class_means import class_means
from training.selection.refinement import PAPERS, RefinementChoice, choose_refinement
from training.systems.finished import label_fold_data
from training.systems.irene.associations import associations
from training.systems.irene.combiner import Kind, make_combiner
from training.systems.irene.head import IreneHead
from training.systems.losses import decoupled_softmax, one_versus_all
from training.systems.system import EncodedBatch, FinishedTraining, SystemDefaults, Task

Objective = Literal["triplet", "bce", "softmax"]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings:
    """The numbers of Table 10, and the variants.

    W starts from the label vectors (`initial = "texts"`) or from the mean of label and query
    vectors (`"queries"`). `learn_classifiers = false` keeps it there; with texts that is Table 8's
    "IRENE with Encoder Embeddings". `frozen_neighbours` keeps C's gradient out of W, as public code
    does.
    `pooled` combines a novel label's text with one weighted mean of its neighbours, see
    `Refinement`.
    """

    objective: Objective = "triplet"
    classifier_margin: Positive = 0.1  # gamma_1
    combiner_margin: Positive = 0.3  # gamma_2
    hardest: Count = 10  # negatives of an instance in the triplet loss
    scale: Positive = 20.0  # logit = scale * inner product + bias, for bce
    bias: float = -10.0
    tau: Positive = 0.05  # of the softmax
    combiner: Kind = "attention"
    heads: Count = 4
    dropout: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.1
    residual: bool = True
    initial: Literal["texts", "queries"] = "texts"
    learn_classifiers: bool = True
    frozen_neighbours: bool = False
    pooled: bool = False


class Irene(SystemDefaults):
    """Trains W and C beside a frozen encoder."""

    encodes_labels = True
    sharded_parameters = ("weight",)

    def __init__(self, settings: Settings, head: IreneHead) -> None:
        self._settings, self.head = settings, head

    def loss(self, batch: EncodedBatch) -> Tensor:
        """Eq. 3, or its variants, over the pool."""
        settings = self._settings
        combined = self.head.combine(
            batch.pool, batch.labels, frozen=settings.frozen_neighbours
        )  # [P, d]
        combiner_loss = self._contrast(
            batch.instances @ combined.T, batch, margin=settings.combiner_margin
        )
        if not settings.learn_classifiers:
            return combiner_loss
        scores = batch.instances @ self.head(batch.pool).T
        return combiner_loss + self._contrast(scores, batch, margin=settings.classifier_margin)

    def _contrast(self, scores: Tensor, batch: EncodedBatch, *, margin: float) -> Tensor:
        settings = self._settings
        if settings.objective == "triplet":
            return batch.triplet(scores, margin=margin, hardest=settings.hardest)
        if settings.objective == "bce":
            return one_versus_all(
                logits=settings.scale * scores + settings.bias,
                positives=batch.positives,
                negatives=batch.negatives,
            )
        return decoupled_softmax(
            label_scores=scores,
            sampled=batch.sampled,
            negatives=batch.negatives,
            tau=settings.tau,
        )

    def label_keys(self, vectors: Floats) -> Floats:
        """C(l) of all labels, the paper's E+(l)."""
        texts = torch.from_numpy(vectors).to(self.head.weight.device)
        keys: Floats = self.head.combine_all(texts).numpy()
        return keys

    def choose_settings(self, finished: FinishedTraining | None, folder: Path) -> str:
        """Choose Algorithm 1's numbers on held-out rows; without any, write the paper's."""
        settings = self._settings
        chosen = RefinementChoice(refinement=PAPERS)
        if finished is not None:
            self.head.eval()
            weight = finished.head_weights["weight"]
            data = label_fold_data(
                finished,
                classifiers=normalize(weight, dim=-1).cpu().numpy(),
                combine=self._combine,
            )
            chosen = choose_refinement(data, pooled=settings.pooled, seed=0)
        novel = NovelChoices(
            combiner=settings.combiner,
            heads=settings.heads,
            residual=settings.residual,
            refinement=chosen.refinement,
        )
        write_novel(folder, novel)
        return str(chosen)

    def _combine(self, texts: Floats, classifiers: Floats, present: Bools) -> Floats:
        device = self.head.weight.device
        inputs = (torch.from_numpy(array).to(device) for array in (texts, classifiers, present))
        with torch.no_grad():
            combined: Floats = self.head.combiner(*inputs).cpu().numpy()
        return combined


def build(settings: Settings, task: Task) -> Irene:
    """The system with an untrained combiner, and classifiers from texts or queries."""
    texts = task.label_vectors()
    combiner = make_combiner(
        settings.combiner,
        task.dimension,
        places=ASSOCIATED,
        heads=settings.heads,
        dropout=settings.dropout,
        residual=settings.residual,
    )
    neighbours = associations(labels_of=task.labels_of, texts=texts, count=ASSOCIATED)
    initial = texts
    if settings.initial == "queries":
        instances = task.instance_vectors()
        initial = class_means(task.labels_of, instances, texts, text_weight=1.0)
    head = IreneHead(
        torch.from_numpy(initial),
        combiner,
        torch.from_numpy(neighbours),
        learned=settings.learn_classifiers,
        sharding=task.sharding,
    )
    return Irene(settings, head)

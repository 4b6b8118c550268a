"""IRENE's second stage (Yadav et al., section 4.2): classifiers W and combiner C, encoder frozen.

Stage I trains the encoder, with NGAME's loss in the paper (`encoder.stage_one` of the recipe, or
`--encoder`). Stage II learns a classifier for each label from the same clicks. It also learns how
to combine the classifiers of similar labels for a label that has none:

    [s(E(x), w_n) - s(E(x), w_p) + gamma_1]_+ + [s(E(x), C(n)) - s(E(x), C(p)) + gamma_2]_+  (Eq. 3)

`objective` may also be `bce`, binary cross-entropy over the batch's labels as in public code, or
`softmax`, Eq. 9 of RAE-XMC over both kinds of scores.

Shapes: B instances, P labels of the pool, L labels, m associated labels, d dimensions.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from scipy.sparse import csr_matrix
from torch import Tensor
from torch.nn.functional import normalize

from service.core.config import STRICT, Count, Positive
from service.core.encoding.irene import ASSOCIATED
from service.core.types import Bools, Floats, Rows
from training.checkpoints.choices import NovelChoices, write_novel
from training.models.class_means import class_means
from training.models.sharding import TABLE, ClassifierTable, Sharding
from training.selection.refinement import PAPERS, RefinementChoice, choose_refinement
from training.systems.finished import FinishedTraining, label_fold_data
from training.systems.irene.combiner import Combiner, Kind, make_combiner
from training.systems.losses import one_versus_all
from training.systems.system import EncodedBatch, System, Task

_CHUNK = 8_192  # labels combined at once


class IreneHead(ClassifierTable):
    """W, C and the associated labels."""

    def __init__(
        self,
        initial: Tensor,
        combiner: Combiner,
        associated: Tensor,
        *,
        learned: bool,
        sharding: Sharding,
    ) -> None:
        super().__init__(initial, learned=learned, sharding=sharding)
        self.combiner = combiner
        self.register_buffer("associated", associated)  # [L, m], -1 if there is none

    def combine(self, columns: Tensor, texts: Tensor, *, frozen: bool = False) -> Tensor:
        """Return C(l) [P, d] of the labels `columns` [P], whose text vectors are `texts` [P, d].

        With `frozen`, C's gradient does not change W.
        """
        neighbours = self.associated[columns]  # [P, m]
        classifiers = self(neighbours.clamp(min=0))  # [P, m, d]
        if frozen:
            classifiers = classifiers.detach()
        return self.combiner(texts, classifiers, neighbours >= 0)

    def combine_all(self, texts: Tensor) -> Tensor:
        """Return C(l) of all labels [L, d] on the CPU, without gradients and dropout."""
        columns = torch.arange(len(texts), device=texts.device)
        training = self.training
        self.eval()
        with torch.no_grad():
            pieces = [self.combine(chunk, texts[chunk]).cpu() for chunk in columns.split(_CHUNK)]
        self.train(training)
        return torch.cat(pieces)


BLOCK = 256  # labels whose co-occurring labels are counted at once
MOST = 4_096  # co-occurring labels that are compared by text; those with most common rows


def associations(*, labels_of: csr_matrix, texts: Floats, count: int) -> Rows:
    """Return S_l for every label: its m nearest co-occurring labels, [L, m], padded with -1.

    `labels_of` [N, L] are the labels of the training rows, `texts` [L, d] the labels' unit vectors.
    """
    pairs = csr_matrix(labels_of != 0).astype(np.float32)
    rows_of = csr_matrix(pairs.T)
    associated = np.full((pairs.shape[1], count), -1, np.int64)
    for start in range(0, len(associated), BLOCK):
        shared = csr_matrix(rows_of[start : start + BLOCK] @ pairs)  # [block, L] rows in common
        for label in range(shared.shape[0]):
            entries = slice(shared.indptr[label], shared.indptr[label + 1])
            candidates, rows = shared.indices[entries], shared.data[entries]
            others = candidates != start + label
            nearest = _nearest(candidates[others], rows[others], texts, texts[start + label], count)
            associated[start + label, : len(nearest)] = nearest
    return associated


def _nearest(candidates: Rows, shared: Floats, texts: Floats, text: Floats, count: int) -> Rows:
    """Return the `count` candidates nearest to `text`, nearest first; ties in column order."""
    if len(candidates) > MOST:
        candidates = candidates[np.lexsort((candidates, -shared))[:MOST]]
    similarities = texts[candidates] @ text
    return np.asarray(candidates[np.lexsort((candidates, -similarities))[:count]], np.int64)


Objective = Literal["triplet", "bce", "softmax"]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings:
    """The settings of Table 10, and variants.

    W starts from the label vectors (`initial = "texts"`) or from the mean of label and query
    vectors (`"queries"`). `learn_classifiers = false` keeps it there; with texts that is Table 8's
    "IRENE with Encoder Embeddings". With `frozen_neighbours`, C's gradient does not change W, as
    in public code. `pooled` combines a novel label's text with one weighted mean of its neighbors
    (see `Refinement`).
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


class Irene(System):
    """Trains W and C alongside a frozen encoder."""

    head: IreneHead
    sharded_parameters = (TABLE,)

    def __init__(self, settings: Settings, head: IreneHead) -> None:
        self._settings, self.head = settings, head

    def loss(self, batch: EncodedBatch) -> Tensor:
        """Return Eq. 3, or the objective chosen instead, over the pool."""
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
        return batch.decoupled_softmax(scores, tau=settings.tau)

    def label_keys(self, vectors: Floats) -> Floats:
        """Return C(l) of all labels, the paper's E+(l)."""
        texts = torch.from_numpy(vectors).to(self.head.weight.device)
        keys: Floats = self.head.combine_all(texts).numpy()
        return keys

    def choose_settings(self, finished: FinishedTraining | None, folder: Path) -> str:
        """Choose Algorithm 1's numbers on held-out rows, or take the paper's; write them."""
        settings = self._settings
        chosen = RefinementChoice(refinement=PAPERS)
        if finished is not None:
            self.head.eval()
            classifiers = normalize(finished.head_weights["weight"], dim=-1).cpu().numpy()
            data = label_fold_data(finished, classifiers=classifiers, combine=self._combine)
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
    """Return the system with an untrained combiner, and classifiers from texts or queries."""
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

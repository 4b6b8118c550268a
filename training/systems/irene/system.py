"""IRENE's second stage (Yadav et al., section 4.2): classifiers W and combiner C, encoder frozen.

Stage I is any encoder: the paper's is NGAME's (`encoder.stage_one` of the recipe, or `--encoder`).
Stage II learns from the same clicks what a label's classifier is, and how the classifiers of labels
that are like it make up for a label that has none:

    [s(E(x), w_n) - s(E(x), w_p) + gamma_1]_+ + [s(E(x), C(n)) - s(E(x), C(p)) + gamma_2]_+  (Eq. 3)

`objective` may also be `bce`, binary cross-entropy over the batch's labels as in public code, or
`softmax`, Eq. 9 of RAE-XMC over both kinds of scores.

Shapes: B instances, P labels of the pool, L labels, m associated labels, d dimensions.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn
from torch.nn.functional import normalize

from service.core.config import STRICT, Count, Positive
from service.core.encoding.irene import ASSOCIATED
from service.core.types import Bools, Floats
from training.checkpoints.choices import NovelChoices, write_novel
from training.models.class_means import class_means
from training.models.sharding import Sharding
from training.selection.hidden_label_folds import LabelFoldData, a_row_of_each
from training.selection.refinement import PAPERS, Chosen, choose_refinement
from training.systems import Encoded, Task, Trained
from training.systems.irene.associations import associations
from training.systems.irene.combiner import Combiner, Kind, make_combiner
from training.systems.losses import decoupled_softmax, one_versus_all, triplet

Objective = Literal["triplet", "bce", "softmax"]
_CHUNK = 8_192  # labels that are combined at once


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings:
    """The numbers of Table 10, and which of the variants.

    W starts from the labels' texts, or from the mean of text and queries. `learn_classifiers =
    false` keeps it there; with texts, that is Table 8's "IRENE with Encoder Embeddings".
    `frozen_neighbours` lets no gradient of C into W, as public code does. With `pooled`, what
    survives of a novel label's shortlist joins its text as one weighted mean, see `Refinement`.
    """

    objective: Objective = "triplet"
    classifier_margin: Positive = 0.1  # gamma_1
    combiner_margin: Positive = 0.3  # gamma_2
    hardest: Count = 10  # negatives of an instance that a triplet counts
    scale: Positive = 20.0  # of an inner product as a logit, for bce
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


class Classifiers(nn.Module):  # type: ignore[misc]
    """W and C, and which labels are associated with which.

    Each process holds its share of W's rows. A state is whole: every process must ask for it at
    once, and takes its rows of one that it loads.
    """

    def __init__(
        self,
        initial: Tensor,
        combiner: Combiner,
        associated: Tensor,
        *,
        learned: bool,
        sharding: Sharding,
    ) -> None:
        super().__init__()
        self.sharding = sharding
        own = sharding.own(initial).clone()
        self.weight = nn.Parameter(own, requires_grad=learned)  # [this process's of L, d]
        self.combiner = combiner
        self.register_buffer("associated", associated)  # [L, m], -1 where there is none
        self.register_state_dict_post_hook(_with_all_rows)
        self.register_load_state_dict_pre_hook(_with_own_rows)

    def forward(self, columns: Tensor) -> Tensor:
        """w_l of `columns`, unit vectors [..., d]; their gradient is sparse."""
        return normalize(self.sharding.looked_up(columns, self.weight), dim=-1)

    def combined(self, columns: Tensor, texts: Tensor, *, frozen: bool = False) -> Tensor:
        """C(l) of `columns` [P] with texts [P, d]."""
        near = self.associated[columns]  # [P, m]
        classifiers = self(near.clamp(min=0))  # [P, m, d]
        return self.combiner(texts, classifiers.detach() if frozen else classifiers, near >= 0)


def _with_all_rows(module: Classifiers, state: dict[str, Tensor], prefix: str, *_: Any) -> None:
    state[f"{prefix}weight"] = module.sharding.whole(state[f"{prefix}weight"].detach())


def _with_own_rows(module: Classifiers, state: dict[str, Tensor], prefix: str, *_: Any) -> None:
    state[f"{prefix}weight"] = module.sharding.own(state[f"{prefix}weight"])


class Irene:
    """Stage II."""

    encodes_labels = True
    sparse = ("weight",)

    def __init__(self, settings: Settings, classifiers: Classifiers) -> None:
        self._settings, self.own = settings, classifiers

    def loss(self, batch: Encoded) -> Tensor:
        """Eq. 3, or its variants, over the pool."""
        settings = self._settings
        combined = self.own.combined(
            batch.pool, batch.labels, frozen=settings.frozen_neighbours
        )  # [P, d]
        of_combiner = self._contrast(
            batch.instances @ combined.T, batch, margin=settings.combiner_margin
        )
        if not settings.learn_classifiers:
            return of_combiner
        scores = batch.instances @ self.own(batch.pool).T
        return of_combiner + self._contrast(scores, batch, margin=settings.classifier_margin)

    def _contrast(self, scores: Tensor, batch: Encoded, *, margin: float) -> Tensor:
        settings = self._settings
        if settings.objective == "triplet":
            return triplet(
                label_scores=scores,
                sampled=batch.sampled,
                negatives=batch.negatives,
                margin=margin,
                hardest=settings.hardest,
            )
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
        texts = torch.from_numpy(vectors).to(self.own.weight.device)
        columns = torch.arange(len(texts), device=texts.device)
        training = self.own.training
        self.own.eval()
        with torch.no_grad():
            pieces = [self.own.combined(own, texts[own]).cpu() for own in columns.split(_CHUNK)]
        self.own.train(training)
        found: Floats = torch.cat(pieces).numpy()
        return found

    def decide(self, trained: Trained | None, folder: Path) -> str:
        """K, tau0 and tau1 of Algorithm 1, see `refinement`; unasked, the paper's."""
        settings = self._settings
        found = Chosen(refinement=PAPERS)
        if trained is not None:
            self.own.eval()
            found = choose_refinement(self._held_out(trained), pooled=settings.pooled, seed=0)
        chosen = NovelChoices(
            combiner=settings.combiner,
            heads=settings.heads,
            residual=settings.residual,
            refinement=found.refinement,
        )
        write_novel(folder, chosen)
        return str(found)

    def _held_out(self, trained: Trained) -> LabelFoldData:
        validation, instances = trained.validation, trained.instances
        train = validation.dataset.train
        slices, asking = validation.slices, validation.slices.held_out
        revealed = a_row_of_each(train.labels_of, among=slices.kept)  # [L]
        return LabelFoldData(
            texts=trained.labels,
            keys=trained.keys,
            classifiers=normalize(trained.own["weight"], dim=-1).cpu().numpy(),
            queries=np.where((revealed >= 0)[:, None], instances[revealed], np.float32(np.nan)),
            asking=instances[asking],
            positives=train.labels_of[asking],
            filtered=train.filtered[asking],
            combine=self._combine,
            choices=trained.choices,
            hidden=validation.hidden,
        )

    def _combine(self, texts: Floats, classifiers: Floats, present: Bools) -> Floats:
        device = self.own.weight.device
        inputs = (torch.from_numpy(own).to(device) for own in (texts, classifiers, present))
        with torch.no_grad():
            combined: Floats = self.own.combiner(*inputs).cpu().numpy()
        return combined


def build(settings: Settings, task: Task) -> Irene:
    """See `systems.build`."""
    texts = task.label_vectors()
    combiner = make_combiner(
        settings.combiner,
        task.dimension,
        places=ASSOCIATED,
        heads=settings.heads,
        dropout=settings.dropout,
        residual=settings.residual,
    )
    near = associations(labels_of=task.labels_of, texts=texts, count=ASSOCIATED)
    initial = texts
    if settings.initial == "queries":
        instances = task.instance_vectors()
        initial = class_means(task.labels_of, instances, texts, text_weight=1.0)
    classifiers = Classifiers(
        torch.from_numpy(initial),
        combiner,
        torch.from_numpy(near),
        learned=settings.learn_classifiers,
        sharding=task.sharding,
    )
    return Irene(settings, classifiers)

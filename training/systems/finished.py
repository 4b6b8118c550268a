"""What a finished run chooses from: how novel labels are represented.

Shapes: N training rows, L labels, d dimensions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from service.core.encoding.irene import ASSOCIATED, Combine
from service.core.types import Bools, Floats
from training.checkpoints.choices import Choices, NovelChoices, write_novel
from training.selection.hidden_label_folds import LabelFoldData, row_of_each_label
from training.selection.refinement import choose_refinement
from training.selection.validation import Validation
from training.systems.irene.combiner import SumCombiner

COMBINER = "sum"  # a combiner without parameters to train


@dataclass(frozen=True, kw_only=True, eq=False)
class FinishedTraining:
    """The best checkpoint's vectors and choices, from which a system chooses its settings."""

    validation: Validation
    instances: Floats  # [N, d]
    labels: Floats  # [L, d], the encoder's vectors of the labels' texts
    keys: Floats  # [L, d], the label keys that were chosen for the memory
    choices: Choices  # the memory's temperature, lambda and b
    head_weights: Mapping[str, Tensor]  # the head's parameters; all rows of sharded tables


def label_fold_data(
    finished: FinishedTraining, *, classifiers: Floats, combine: Combine
) -> LabelFoldData:
    """Return the labels [L, d], their classifiers, and the held-out rows that measure them.

    One training row of each label serves as the query that is posted with it.
    """
    validation, instances = finished.validation, finished.instances
    train = validation.dataset.train
    slices, held_out = validation.slices, validation.slices.held_out
    revealed = row_of_each_label(train.labels_of, among=slices.kept)  # [L]
    return LabelFoldData(
        texts=finished.labels,
        keys=finished.keys,
        classifiers=classifiers,
        label_queries=np.where((revealed >= 0)[:, None], instances[revealed], np.float32(np.nan)),
        held_out_queries=instances[held_out],
        positives=train.labels_of[held_out],
        filtered=train.filtered[held_out],
        combine=combine,
        choices=finished.choices,
        hidden=validation.hidden,
    )


def choose_novel_by_keys(finished: FinishedTraining | None, folder: Path) -> str:
    """Choose how far similar labels' keys, and posted queries, move a novel label's key.

    In IRENE's Algorithm 1, the keys of known labels take the role of classifiers: their mean moves
    the vector of the novel label's text. Returns a line for the user. Writes nothing if the
    memory's label keys are the text vectors.
    """
    if finished is None or finished.keys is finished.labels:
        return ""
    data = label_fold_data(finished, classifiers=finished.keys, combine=_sums)
    # No residual: it is a share of the key, and the "classifiers" are these keys themselves.
    chosen = choose_refinement(data, pooled=True, residuals=(0.0,), seed=0)
    if chosen.text is None:
        return str(chosen)
    novel = NovelChoices(
        combiner=COMBINER, heads=1, residual=False, refinement=chosen.refinement, classifiers="keys"
    )
    write_novel(folder, novel)
    return str(chosen)


def _sums(texts: Floats, classifiers: Floats, present: Bools) -> Floats:
    inputs = (torch.from_numpy(array) for array in (texts, classifiers, present))
    combined: Floats = SumCombiner(ASSOCIATED, weighted=False)(*inputs).numpy()
    return combined

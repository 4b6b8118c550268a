"""What a finished training offers for choosing how novel labels are represented.

Shapes: N training rows, L labels, d dimensions.
"""

from __future__ import annotations

import numpy as np

from service.core.encoding.irene import Combine
from service.core.types import Floats
from training.selection.hidden_label_folds import LabelFoldData, row_of_each_label
from training.systems.system import FinishedTraining


def label_fold_data(
    finished: FinishedTraining, *, classifiers: Floats, combine: Combine
) -> LabelFoldData:
    """The labels [L, d] with their classifiers, and the held-out rows that ask for them.

    One kept row of each label is its query.
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

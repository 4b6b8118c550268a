"""What a peer may learn from: the train split, and the texts of all labels.

Shapes: N rows that train, L labels.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_matrix

from service.core.errors import InvalidInput
from service.core.types import Rows
from training.datasets.dataset import Dataset
from training.datasets.training_pairs import TrainingPairs


@dataclass(frozen=True, kw_only=True, eq=False)
class Material:
    """Rows with at least one label that counts; filtered pairs are left out."""

    rows: Rows  # [N], their places in the train split
    texts: tuple[str, ...]  # N
    labels_of: csr_matrix  # [N, L] float32, ones
    label_texts: tuple[str, ...]  # L


def material(dataset: Dataset) -> Material:
    """Take the train split as our own systems do: binary, without filtered pairs and empty rows.

    Raises `InvalidInput` where no row is left.
    """
    pairs = TrainingPairs(labels_of=dataset.train.labels_of, filtered=dataset.train.filtered)
    rows = pairs.trainable()
    if not len(rows):
        raise InvalidInput("no training row has a label that counts", field="train")
    texts = dataset.train.instances.texts
    return Material(
        rows=rows,
        texts=tuple(texts[row] for row in rows),
        labels_of=csr_matrix(pairs.drawable[rows], dtype=np.float32),
        label_texts=dataset.labels.texts,
    )

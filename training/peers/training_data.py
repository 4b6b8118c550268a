"""The data that a peer is trained on: the train split, and the texts of all labels.

Shapes: N training rows, L labels.
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
class PeerTrainingData:
    """Training rows with at least one label; filtered pairs are left out."""

    rows: Rows  # [N], row numbers in the train split
    texts: tuple[str, ...]  # N
    labels_of: csr_matrix  # [N, L] float32, ones
    label_texts: tuple[str, ...]  # L


def peer_training_data(dataset: Dataset) -> PeerTrainingData:
    """The train split as our systems use it: binary, without filtered pairs and empty rows.

    Raises `InvalidInput` if no row is left.
    """
    pairs = TrainingPairs(labels_of=dataset.train.labels_of, filtered=dataset.train.filtered)
    rows = pairs.trainable()
    if not len(rows):
        raise InvalidInput("no training row has a label that counts", field="train")
    texts = dataset.train.instances.texts
    return PeerTrainingData(
        rows=rows,
        texts=tuple(texts[row] for row in rows),
        labels_of=csr_matrix(pairs.drawable[rows], dtype=np.float32),
        label_texts=dataset.labels.texts,
    )

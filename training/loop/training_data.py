"""The data of a run: the pairs that count, the rows that train, and the held-out rows.

Shapes: N training rows, L labels.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_matrix, diags

from service.core.errors import InvalidConfig
from service.core.types import Bools, Rows
from training.datasets.dataset import Dataset, Texts
from training.datasets.metadata_links import require_metadata
from training.datasets.training_pairs import TrainingPairs
from training.recipes.recipe import Recipe
from training.selection.validation import Slices, ValidationSettings, hidden_labels, hold_out
from training.systems.registry import reads_items


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainingData:
    """The training split, with its hidden labels and its held-out rows."""

    pairs: TrainingPairs
    slices: Slices
    hidden: Rows  # labels whose pairs do not train
    rows: Rows  # the rows that train: not held out, and with a label to sample

    @property
    def instances(self) -> int:
        """N, the number of training rows, including held-out ones."""
        return int(self.pairs.labels_of.shape[0])


def split_training_data(
    dataset: Dataset,
    validation: ValidationSettings,
    *,
    seed: int,
    source: str,
    unseen: Bools | None = None,
) -> TrainingData:
    """Hide labels and hold out rows, according to a recipe's settings and seed.

    `unseen` [N] marks the rows that the first encoder has not trained on; None stands for all.
    Raises `InvalidConfig` if fewer than two rows are left to train on.
    """
    hidden = hidden_labels(dataset, share=validation.labels, seed=seed)
    pairs = training_pairs(dataset, hidden)
    trainable = pairs.trainable()
    texts = dataset.train.instances.texts
    slices = hold_out(
        trainable,
        total=len(texts),
        count=validation.rows,
        seed=seed,
        texts=texts if validation.drawn == "texts" else None,
        unseen=unseen,
    )
    left = len(trainable) - len(slices.held_out)
    if left < 2:
        raise InvalidConfig(
            f"{source}: {left} labelled training rows are left besides those held out;"
            f" at least two are needed"
        )
    rows = np.intersect1d(slices.kept, trainable)
    return TrainingData(pairs=pairs, slices=slices, hidden=hidden, rows=rows)


def training_pairs(dataset: Dataset, hidden: Rows) -> TrainingPairs:
    """Return all pairs; those of `hidden` labels are filtered: neither positives nor negatives."""
    train = dataset.train
    if not len(hidden):
        return TrainingPairs(labels_of=train.labels_of, filtered=train.filtered)
    is_hidden = np.zeros(len(dataset.labels), bool)
    is_hidden[hidden] = True
    hidden_pairs = csr_matrix(train.labels_of != 0) @ diags(is_hidden.astype(np.float32))
    filtered = csr_matrix(train.filtered.astype(bool) + (hidden_pairs != 0))
    return TrainingPairs(labels_of=train.labels_of, filtered=filtered)


def items_to_read(recipe: Recipe, dataset: Dataset, *, source: str) -> Texts:
    """Return the data's metadata items if the recipe's system reads them, otherwise none.

    Raises `InvalidInput` if the system reads items, but the data set has no metadata.
    """
    if not reads_items(recipe.system):
        return Texts(uids=(), texts=())
    return require_metadata(dataset, reader=f"{source}: system {recipe.system['name']} reads")

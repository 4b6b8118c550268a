"""A data set's metadata items, and which of them each row is linked to.

Shapes: n rows, M items, m items of one row.
"""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_matrix

from service.core.errors import InvalidInput
from service.core.types import Rows
from training.datasets.dataset import Dataset, Texts

NO_ITEM = -1  # pads rows that have fewer items than others


def require_metadata(dataset: Dataset, *, reader: str) -> Texts:
    """Return the metadata items; raises `InvalidInput`, which says that `reader` needs some."""
    if dataset.metadata is None or not len(dataset.metadata):
        raise InvalidInput(
            f"{reader} metadata items, and data set {dataset.name} has none (metadata.json.gz)"
        )
    return dataset.metadata


def item_frequency(metadata_of: csr_matrix) -> Rows:
    """Return how many rows of metadata_of [n, M] have each item, [M]."""
    frequency: Rows = np.asarray((metadata_of != 0).sum(axis=0)).ravel()
    return frequency


def linked_items(metadata_of: csr_matrix, frequency: Rows, *, count: int) -> Rows:
    """Return the columns [n, m] of the items of each row of metadata_of [n, M], the rarest first.

    `frequency` [M] counts the rows with each item; ties keep the items' order. `count` is m.
    """
    places = np.full((metadata_of.shape[0], count), NO_ITEM, np.int64)
    row_of = np.repeat(np.arange(len(places)), np.diff(metadata_of.indptr))  # of each link
    items = metadata_of.indices
    order = np.lexsort((items, frequency[items], row_of))  # rows stay together
    rank = np.arange(len(items)) - metadata_of.indptr[row_of]
    kept = rank < count
    places[row_of[kept], rank[kept]] = items[order][kept]
    return places


def all_linked(metadata_of: csr_matrix, dataset: Dataset) -> Rows:
    """Return the columns [n, m] of all items of each row of metadata_of [n, M], the rarest first.

    Rarity is counted in the training rows; m is the largest number of items in a row.
    """
    assert dataset.train.metadata_of is not None
    frequency = item_frequency(dataset.train.metadata_of)
    most = max(1, int(np.diff(metadata_of.indptr).max(initial=0)))
    return linked_items(metadata_of, frequency, count=most)

"""A data set's metadata items: those that what reads them requires, and those that a row has.

Shapes: n rows, M items, m items of a row.
"""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_matrix

from service.core.errors import InvalidInput
from service.core.types import Rows
from training.datasets.dataset import Dataset, Texts

NO_ITEM = -1  # fills up where a row has fewer items than others


def require_metadata(dataset: Dataset, *, reader: str) -> Texts:
    """The metadata items; raises `InvalidInput`, which says that `reader` needs some."""
    if dataset.metadata is None or not len(dataset.metadata):
        raise InvalidInput(
            f"{reader} metadata items, and data set {dataset.name} has none (metadata.json.gz)"
        )
    return dataset.metadata


def item_frequency(metadata_of: csr_matrix) -> Rows:
    """How many rows of metadata_of [n, M] have each item, [M]."""
    frequency: Rows = np.asarray((metadata_of != 0).sum(axis=0)).ravel()
    return frequency


def linked_items(metadata_of: csr_matrix, frequency: Rows, *, count: int) -> Rows:
    """The true items of each row of metadata_of [n, M], the rarest first, as places [n, m].

    `frequency` [M] says how rare; of equally rare items the first one comes first. `count` is m.
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
    """All items that each row of metadata_of [n, M] is linked to, the rarest in training first.

    Returns places [n, m], m being the largest number of items of a row.
    """
    assert dataset.train.metadata_of is not None
    frequency = item_frequency(dataset.train.metadata_of)
    most = max(1, int(np.diff(metadata_of.indptr).max(initial=0)))
    return linked_items(metadata_of, frequency, count=most)

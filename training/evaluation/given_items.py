"""The items of a bundle that the data link the test rows to: given ones in place of predicted ones.

Shapes: n test rows, m items of a row.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from service.core.errors import InvalidInput, echoed
from service.core.items.item_memory import ItemMemory
from service.core.types import Rows
from training.datasets.dataset import Dataset
from training.datasets.metadata_links import NO_ITEM, all_linked, require_metadata


def linked_places(memory: ItemMemory | None, dataset: Dataset) -> Sequence[Rows]:
    """The places in `memory` of each test row's items [m], the rarest in training first.

    They are found by id. Raises `InvalidInput` for a bundle without an item memory, for data
    without metadata, and for an item of a test row that the bundle does not have.
    """
    if memory is None:
        raise InvalidInput("--items linked is for a bundle with an item memory; this one has none")
    items = require_metadata(dataset, reader="--items linked gives")
    assert dataset.test.metadata_of is not None
    linked = all_linked(dataset.test.metadata_of, dataset)
    place_of = np.full(len(items), NO_ITEM, np.int64)
    for column in np.unique(linked[linked != NO_ITEM]).tolist():
        place = memory.find(items.uids[column])
        if place is None:
            raise InvalidInput(
                f"the bundle has no item with the id {echoed(items.uids[column])}, to which data"
                f" set {dataset.name} links test rows"
            )
        place_of[column] = place
    return [place_of[row[row != NO_ITEM]] for row in linked]

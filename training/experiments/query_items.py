"""The metadata items that test queries attend to, where a run's system reads any.

Shapes: n test rows, M items, m items of a query, d dimensions.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from service.core.errors import InvalidInput
from service.core.types import Floats, Role, Rows
from training.checkpoints.item_memory import has_item_memory
from training.datasets.dataset import Dataset
from training.datasets.metadata_links import all_linked, require_metadata
from training.evaluation.encode_texts import encode_texts
from training.models.precision import Precision
from training.models.torch_encoder import TorchEncoder
from training.systems.oak.checkpoint import read_item_memory
from training.systems.oak.memory import ItemVectors


@dataclass(frozen=True, kw_only=True, eq=False)
class QueryItems:
    """The test rows as the encoder alone sees them, and the memory of the items."""

    vectors: Floats  # [n, d]
    memory: ItemVectors

    def fused(self, places: Rows | None = None) -> Floats:
        """The test rows fused with the items at `places` [n, m]; default: the predicted ones."""
        return self.memory.fused(self.vectors, places)


def query_items(
    encoder: TorchEncoder,
    dataset: Dataset,
    queries: Floats,
    *,
    folder: Path | None,
    precision: Precision,
) -> QueryItems | None:
    """The test rows, whose vectors are `queries` [n, d], and the item memory of a checkpoint.

    None where its system reads no items. Raises `InvalidInput` for one that does on a data set
    without metadata.
    """
    if folder is None or not has_item_memory(folder):
        return None
    items = require_metadata(dataset, reader=f"{folder} looks up")
    keys = encode_texts(encoder, items.texts, role=Role.LABEL, precision=precision)
    return QueryItems(vectors=queries, memory=read_item_memory(folder, keys))


def linked_to_test_rows(items: QueryItems | None, dataset: Dataset) -> Rows:
    """The places of the items that the data link the test rows to, [n, m].

    Raises `InvalidInput` where the system reads no items.
    """
    if items is None:
        raise InvalidInput("--items linked is for a run of OAK; this one looks up no items")
    assert dataset.test.metadata_of is not None
    return all_linked(dataset.test.metadata_of, dataset)

"""Texts with their metadata appended: MOGIC's early fusion, which its oracle reads (section 3.2).

A query of a service has no metadata, so nothing that is served reads such texts.

Shapes: N texts, M metadata items.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np
from pydantic.dataclasses import dataclass
from scipy.sparse import csr_matrix

from service.core.config import STRICT, Count
from service.core.types import Rows
from training.datasets.dataset import Dataset, Split, Texts
from training.datasets.metadata_links import (
    NO_ITEM,
    item_frequency,
    linked_items,
    require_metadata,
)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class MetadataSettings:
    """Which texts get their metadata appended: those of queries, of labels, both, or none.

    A text gets at most `items` items, the rarest first, since those say most; each one follows a
    `delimiter`, by default BERT's separator token. What a text has beyond the recipe's
    `encoder.query_tokens` and `label_tokens` is cut.
    """

    append: Literal["none", "queries", "labels", "both"] = "none"
    items: Count = 8
    delimiter: str = " [SEP] "


def with_metadata(dataset: Dataset, settings: MetadataSettings) -> Dataset:
    """The data set with its true metadata appended to its texts, those of the test rows included.

    Raises `InvalidInput` for a data set without metadata.
    """
    if settings.append == "none":
        return dataset
    names = require_metadata(dataset, reader=f"metadata.append = {settings.append!r} reads").texts
    queries = settings.append in ("queries", "both")
    labels = settings.append in ("labels", "both")
    frequency = _frequency(dataset)

    def appended(texts: Texts, metadata_of: csr_matrix | None) -> Texts:
        assert metadata_of is not None
        items = linked_items(metadata_of, frequency, count=settings.items)
        fused = (
            settings.delimiter.join([text, *(names[item] for item in chosen if item != NO_ITEM)])
            for text, chosen in zip(texts.texts, items.tolist(), strict=True)
        )
        return replace(texts, texts=tuple(fused))

    def of_split(split: Split) -> Split:
        return replace(split, instances=appended(split.instances, split.metadata_of))

    return replace(
        dataset,
        train=of_split(dataset.train) if queries else dataset.train,
        test=of_split(dataset.test) if queries else dataset.test,
        labels=appended(dataset.labels, dataset.label_metadata) if labels else dataset.labels,
    )


def _frequency(dataset: Dataset) -> Rows:
    """How many training rows and labels have each item, [M]; test rows are unknown in training."""
    counts = [
        item_frequency(matrix)
        for matrix in (dataset.train.metadata_of, dataset.label_metadata)
        if matrix is not None
    ]
    frequency: Rows = np.sum(counts, axis=0)
    return frequency

"""Texts with their metadata appended: MOGIC's early fusion, which its oracle reads (section 3.2).

A query of a service has no metadata, so nothing that is served reads such texts.

Shapes: N texts, M metadata items.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from pydantic.dataclasses import dataclass as checked_dataclass
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


@checked_dataclass(frozen=True, kw_only=True, config=STRICT)
class MetadataSettings:
    """Which texts get their metadata appended: those of queries, of labels, both, or none.

    A text gets at most `items` items, the rarest first, since those say most; each one follows a
    `delimiter`, by default BERT's separator token. What a text has beyond the recipe's
    `encoder.query_tokens` and `label_tokens` is cut.
    """

    append: Literal["none", "queries", "labels", "both"] = "none"
    items: Count = 8
    delimiter: str = " [SEP] "

    @property
    def reads_queries(self) -> bool:
        """Whether queries are read with their metadata."""
        return self.append in ("queries", "both")


def with_metadata(dataset: Dataset, settings: MetadataSettings) -> Dataset:
    """The data set with its true metadata appended to its texts, those of the test rows included.

    Raises `InvalidInput` for a data set without metadata.
    """
    if settings.append == "none":
        return dataset
    append = Appending.of(dataset, settings)

    def of_split(split: Split) -> Split:
        return replace(split, instances=append.to(split.instances, split.metadata_of))

    queries, labels = settings.reads_queries, settings.append in ("labels", "both")
    return replace(
        dataset,
        train=of_split(dataset.train) if queries else dataset.train,
        test=of_split(dataset.test) if queries else dataset.test,
        labels=append.to(dataset.labels, dataset.label_metadata) if labels else dataset.labels,
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class Appending:
    """How metadata are appended to any texts of a data set."""

    settings: MetadataSettings
    items: Texts  # M
    frequency: Rows  # [M], how many training rows and labels have each item

    @classmethod
    def of(cls, dataset: Dataset, settings: MetadataSettings) -> Appending:
        """That of a data set; raises `InvalidInput` for one without metadata."""
        items = require_metadata(dataset, reader=f"metadata.append = {settings.append!r} reads")
        return cls(settings=settings, items=items, frequency=_frequency(dataset))

    def to(self, texts: Texts, metadata_of: csr_matrix | None) -> Texts:
        """The texts [N], each with its items of metadata_of [N, M]."""
        assert metadata_of is not None
        items = linked_items(metadata_of, self.frequency, count=self.settings.items)
        names = self.items.texts
        fused = (
            self.settings.delimiter.join(
                [text, *(names[item] for item in chosen if item != NO_ITEM)]
            )
            for text, chosen in zip(texts.texts, items.tolist(), strict=True)
        )
        return replace(texts, texts=tuple(fused))


def _frequency(dataset: Dataset) -> Rows:
    """How many training rows and labels have each item, [M]; test rows are unknown in training."""
    counts = [
        item_frequency(matrix)
        for matrix in (dataset.train.metadata_of, dataset.label_metadata)
        if matrix is not None
    ]
    frequency: Rows = np.sum(counts, axis=0)
    return frequency

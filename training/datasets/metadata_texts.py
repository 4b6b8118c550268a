"""Texts with their metadata appended: MOGIC's early fusion, which its oracle reads (section 3.2).

A service's queries have no metadata, so no served encoder reads such texts.

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
from training.datasets.metadata_links import NO_ITEM, item_frequency, linked_items, require_metadata


@checked_dataclass(frozen=True, kw_only=True, config=STRICT)
class MetadataSettings:
    """Which texts get their metadata appended: queries, labels, both, or none.

    A text gets at most `items` items, the rarest and so most informative first. A `delimiter`
    precedes each, by default BERT's separator token. The recipe's `encoder.query_tokens` and
    `label_tokens` limit the result.
    """

    append: Literal["none", "queries", "labels", "both"] = "none"
    items: Count = 8
    delimiter: str = " [SEP] "

    @property
    def reads_queries(self) -> bool:
        """Whether queries are read with their metadata."""
        return self.append in ("queries", "both")


def with_metadata(dataset: Dataset, settings: MetadataSettings) -> Dataset:
    """Append each row's own metadata to a data set's texts, test rows included.

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
    """Appends metadata to any texts of a data set."""

    settings: MetadataSettings
    items: Texts  # M
    frequency: Rows  # [M], how many training rows and labels have each item

    @classmethod
    def of(cls, dataset: Dataset, settings: MetadataSettings) -> Appending:
        """Read a data set's metadata; raises `InvalidInput` if it has none."""
        items = require_metadata(dataset, reader=f"metadata.append = {settings.append!r} reads")
        # Test rows are not counted: training must not know them.
        matrices = (dataset.train.metadata_of, dataset.label_metadata)
        frequency = sum(item_frequency(matrix) for matrix in matrices if matrix is not None)
        return cls(settings=settings, items=items, frequency=np.asarray(frequency))

    def to(self, texts: Texts, metadata_of: csr_matrix | None) -> Texts:
        """Return the texts [N], each with its items of metadata_of [N, M]."""
        assert metadata_of is not None
        items = linked_items(metadata_of, self.frequency, count=self.settings.items)
        fused = []
        for text, chosen in zip(texts.texts, items.tolist(), strict=True):
            names = (self.items.texts[item] for item in chosen if item != NO_ITEM)
            fused.append(self.settings.delimiter.join([text, *names]))
        return replace(texts, texts=tuple(fused))

"""The rows of a table, collected: its queries, its labels, their pairs and their metadata.

Shapes: R rows of the table, Q queries, L labels, M metadata items.
"""

from __future__ import annotations

from array import array
from pathlib import Path

import numpy as np
from scipy.sparse import csr_matrix

from service.core.errors import InvalidData
from service.core.files.bad_rows import OnBadRow
from service.core.types import Doubles
from training.datasets.dataset import pairs_matrix
from training.datasets.pair_weights import decayed
from training.datasets.tables.linked_items import LinkedItems
from training.datasets.tables.rows import Row


class CollectedPairs:
    """The rows that were read so far."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.queries: dict[str, int] = {}  # text -> row
        self.labels: dict[str, int] = {}  # id -> column
        self.label_texts: list[str] = []
        self.items = LinkedItems()
        self._rows, self._columns = array("i"), array("i")  # [R]
        self._weights, self._times = array("d"), array("d")  # [R]

    def append(self, row: Row, on_bad: OnBadRow) -> None:
        """Take a row, unless its label id had another text before."""
        label = self.labels.setdefault(row.label_id, len(self.labels))
        if label == len(self.label_texts):
            self.label_texts.append(row.label)
        if self.label_texts[label] != row.label:
            earlier = self.label_texts[label]
            message = f"{row.label_id!r} has the text {row.label!r}, but earlier {earlier!r}"
            on_bad(InvalidData(self.path, message, line=row.line, field="label id"))
            return
        query = self.queries.setdefault(row.query, len(self.queries))
        self.items.link(query=query, items=row.metadata, label=label, of_label=row.label_metadata)
        self._rows.append(query)
        self._columns.append(label)
        self._weights.append(row.weight)
        self._times.append(row.time)

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def shape(self) -> tuple[int, int]:
        """Q and L."""
        return len(self.queries), len(self.labels)

    def summed(self, half_life: float | None) -> csr_matrix:
        """Return [Q, L] float64, the sums of weights."""
        weights: Doubles = np.array(self._weights, np.float64)
        if half_life is not None:
            weights = decayed(weights, np.array(self._times, np.float64), half_life=half_life)
        positions = (np.array(self._rows, np.int32), np.array(self._columns, np.int32))
        matrix = csr_matrix((weights, positions), shape=self.shape)
        matrix.sum_duplicates()
        return matrix

    def newest_of_queries(self) -> Doubles:
        """Return [Q], the time of each query's newest row."""
        newest = np.full(len(self.queries), -np.inf)
        np.maximum.at(newest, np.array(self._rows, np.int32), np.array(self._times, np.float64))
        return newest

    def period(self) -> tuple[float, float]:
        """The times of the oldest and the newest row."""
        return min(self._times), max(self._times)

    def same_text(self) -> csr_matrix:
        """Return [Q, L] bool: the labels whose text equals the query."""
        same = (
            (self.queries[text], label)
            for label, text in enumerate(self.label_texts)
            if text in self.queries
        )
        return pairs_matrix(same, shape=self.shape)

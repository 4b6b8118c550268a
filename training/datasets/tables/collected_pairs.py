"""Collects a table's rows: its queries, its labels, their pairs and their metadata.

Texts with the same identity (`text_identity`) are one text, in the spelling of its first row.

Shapes: R rows of the table, Q queries, L labels, M metadata items.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from scipy.sparse import csr_matrix

from service.core.errors import InvalidData
from service.core.files.lines import OnBadRow
from service.core.text_identity import identity
from service.core.types import Doubles
from training.datasets.dataset import pairs_matrix
from training.datasets.pair_weights import decayed
from training.datasets.tables.rows import Row


class CollectedPairs:
    """The rows that were read so far; with `keep_case`, each spelling is a separate query."""

    def __init__(self, path: Path, *, keep_case: bool = False) -> None:
        self.path, self._keep_case = path, keep_case
        self.query_texts: list[str] = []
        self.labels: dict[str, int] = {}  # id -> column
        self.label_texts: list[str] = []
        self.unweighted = 0  # rows with an empty weight
        self._row_of_query: dict[str, int] = {}  # `_query_key` -> row
        self._other_queries: set[str] = set()  # spellings that are not the first one
        self._other_labels: set[str] = set()
        self.items: dict[str, int] = {}  # metadata item -> column
        # Links to items, as pairs in a flat array: row, item, row, item, ...
        self._query_items, self._label_items = array("i"), array("i")
        self._rows, self._columns = array("i"), array("i")  # [R]
        self._weights, self._times = array("d"), array("d")  # [R]

    def append(self, row: Row, on_bad: OnBadRow) -> None:
        """Add a row; `on_bad` is called instead if its label id had another text before."""
        label = self.labels.setdefault(row.label_id, len(self.labels))
        if label == len(self.label_texts):
            self.label_texts.append(row.label)
        if self.label_texts[label] != row.label:
            earlier = self.label_texts[label]
            if identity(earlier) != identity(row.label):
                message = f"{row.label_id!r} has the text {row.label!r}, but earlier {earlier!r}"
                on_bad(InvalidData(self.path, message, line=row.line, field="label id"))
                return
            self._other_labels.add(row.label)
        query = self._row_of_query.setdefault(self._query_key(row.query), len(self.query_texts))
        if query == len(self.query_texts):
            self.query_texts.append(row.query)
        elif self.query_texts[query] != row.query:
            self._other_queries.add(row.query)
        self.unweighted += row.unweighted
        self._link(self._query_items, query, row.metadata)
        self._link(self._label_items, label, row.label_metadata)
        self._rows.append(query)
        self._columns.append(label)
        self._weights.append(row.weight)
        self._times.append(row.time)

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def shape(self) -> tuple[int, int]:
        """The numbers of queries and labels, (Q, L)."""
        return len(self.query_texts), len(self.labels)

    @property
    def folded(self) -> tuple[int, int]:
        """The number of spellings of queries and of labels that are not the first one."""
        return len(self._other_queries), len(self._other_labels)

    def summed(self, half_life: float | None) -> csr_matrix:
        """Return the summed weight of each pair, [Q, L] float64."""
        weights: Doubles = np.array(self._weights, np.float64)
        if half_life is not None:
            weights = decayed(weights, np.array(self._times, np.float64), half_life=half_life)
        positions = (np.array(self._rows, np.int32), np.array(self._columns, np.int32))
        matrix = csr_matrix((weights, positions), shape=self.shape)
        matrix.sum_duplicates()
        return matrix

    def newest_of_queries(self) -> Doubles:
        """Return the time of each query's newest row, [Q]."""
        newest = np.full(len(self.query_texts), -np.inf)
        np.maximum.at(newest, np.array(self._rows, np.int32), np.array(self._times, np.float64))
        return newest

    def period(self) -> tuple[float, float]:
        """Return the times of the oldest and the newest row."""
        return min(self._times), max(self._times)

    def same_text(self) -> csr_matrix:
        """Mark the pairs [Q, L] whose query and label have the same text."""
        keys = map(self._query_key, self.label_texts)
        rows = enumerate(map(self._row_of_query.get, keys))
        same = ((row, label) for label, row in rows if row is not None)
        return pairs_matrix(same, shape=self.shape)

    def items_of_queries(self) -> csr_matrix:
        """Return the items of each query, [Q, M] float32; every entry is 1."""
        return self._linked(self._query_items, rows=len(self.query_texts))

    def items_of_labels(self) -> csr_matrix:
        """Return the items of each label, [L, M] float32; every entry is 1."""
        return self._linked(self._label_items, rows=len(self.labels))

    def _link(self, links: array[int], row: int, items: Sequence[str]) -> None:
        for item in items:
            links.extend((row, self.items.setdefault(item, len(self.items))))

    def _linked(self, links: array[int], *, rows: int) -> csr_matrix:
        pairs = zip(links[::2], links[1::2], strict=True)
        return pairs_matrix(pairs, shape=(rows, len(self.items))).astype(np.float32)

    def _query_key(self, text: str) -> str:
        return text if self._keep_case else identity(text)

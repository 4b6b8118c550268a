"""The metadata items of a table's queries and labels, collected row by row.

An item is its text, which is its uid, too. Queries and labels share one list of items. A text that
stands in several rows has the items of all of them, each once; a text may have none.

Shapes: Q queries, L labels, M items.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.sparse import csr_matrix

from training.datasets.dataset import Texts


class LinkedItems:
    """The items so far, and their links to queries and labels."""

    def __init__(self) -> None:
        self._place: dict[str, int] = {}  # item -> its column, in the order of its first row
        self._of_queries: dict[tuple[int, int], None] = {}  # (query, item), without repetition
        self._of_labels: dict[tuple[int, int], None] = {}

    def __len__(self) -> int:
        return len(self._place)

    def link(
        self, *, query: int, items: Sequence[str], label: int, of_label: Sequence[str]
    ) -> None:
        """Link a row's query and its label to their items."""
        self._of_queries.update(dict.fromkeys((query, self._column(item)) for item in items))
        self._of_labels.update(dict.fromkeys((label, self._column(item)) for item in of_label))

    def texts(self) -> Texts:
        """The items, M."""
        return Texts(uids=tuple(self._place), texts=tuple(self._place))

    def of_queries(self, count: int) -> csr_matrix:
        """The items of so many queries, [Q, M]."""
        return self._matrix(self._of_queries, count)

    def of_labels(self, count: int) -> csr_matrix:
        """The items of so many labels, [L, M]."""
        return self._matrix(self._of_labels, count)

    def _column(self, item: str) -> int:
        return self._place.setdefault(item, len(self._place))

    def _matrix(self, links: dict[tuple[int, int], None], count: int) -> csr_matrix:
        entries = np.array([*links], np.int32).reshape(-1, 2)
        ones = np.ones(len(entries), np.float32)
        matrix = csr_matrix((ones, (entries[:, 0], entries[:, 1])), shape=(count, len(self)))
        matrix.sort_indices()
        return matrix

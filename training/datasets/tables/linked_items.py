"""The metadata items of a table's queries and labels, collected row by row.

An item is its text, which is its uid, too. Queries and labels share one list of items. A text that
stands in several rows has the items of all of them, each once; a text may have none.

Shapes: Q queries, L labels, M items.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence

import numpy as np
from scipy.sparse import csr_matrix

from training.datasets.dataset import Texts


class LinkedItems:
    """The items so far, and their links to queries and labels."""

    def __init__(self) -> None:
        self._place: dict[str, int] = {}  # item -> its column, in the order of its first row
        self._of_queries, self._of_labels = _Links(), _Links()

    def __len__(self) -> int:
        return len(self._place)

    def link(
        self, *, query: int, items: Sequence[str], label: int, of_label: Sequence[str]
    ) -> None:
        """Link a row's query and its label to their items."""
        self._of_queries.append(query, map(self._column, items))
        self._of_labels.append(label, map(self._column, of_label))

    def texts(self) -> Texts:
        """The items, M."""
        return Texts(uids=tuple(self._place), texts=tuple(self._place))

    def of_queries(self, count: int) -> csr_matrix:
        """The items of so many queries, [Q, M]."""
        return self._of_queries.matrix((count, len(self)))

    def of_labels(self, count: int) -> csr_matrix:
        """The items of so many labels, [L, M]."""
        return self._of_labels.matrix((count, len(self)))

    def _column(self, item: str) -> int:
        return self._place.setdefault(item, len(self._place))


class _Links:
    """Pairs of a row and an item; a pair may come several times."""

    def __init__(self) -> None:
        self._rows, self._items = array("i"), array("i")

    def append(self, row: int, items: Iterable[int]) -> None:
        before = len(self._items)
        self._items.extend(items)
        self._rows.extend([row] * (len(self._items) - before))

    def matrix(self, shape: tuple[int, int]) -> csr_matrix:
        """Return a one for each pair, float32."""
        entries = np.array(self._rows, np.int32), np.array(self._items, np.int32)
        matrix = csr_matrix((np.ones(len(entries[0]), np.float32), entries), shape=shape)
        matrix.sum_duplicates()
        matrix.data[:] = 1.0
        return matrix

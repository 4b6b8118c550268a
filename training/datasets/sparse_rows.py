"""A sparse matrix that is built row by row, in memory proportional to its entries."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np
from scipy.sparse import csr_matrix

# Smallest and largest relevance that float32 can store; a smaller one would become zero.
SMALLEST = float(np.finfo(np.float32).smallest_subnormal)
LARGEST = float(np.finfo(np.float32).max)


class SparseRows:
    """Rows of (column, value), appended one by one; `matrix` returns them as CSR."""

    def __init__(self) -> None:
        self._ends = array("q", [0])
        self._columns = array("i")
        self._values = array("f")

    def append(self, columns: Sequence[int], values: Sequence[float] | None = None) -> None:
        """Add a row; without `values` all are 1. The caller checks ranges and repeated columns."""
        self._columns.extend(columns)
        self._values.extend(values if values is not None else [1.0] * len(columns))
        self._ends.append(len(self._columns))

    def __len__(self) -> int:
        return len(self._ends) - 1

    def matrix(self, columns: int) -> csr_matrix:
        """Return [rows, `columns`] float32 with sorted columns."""
        matrix = csr_matrix(
            (
                np.array(self._values, dtype=np.float32),
                np.array(self._columns, dtype=np.int32),
                np.array(self._ends, dtype=np.int64),  # scipy converts it to int32 if it fits
            ),
            shape=(len(self), columns),
        )
        matrix.sort_indices()
        return matrix


def is_relevance(value: object) -> bool:
    """Whether `value` is a positive number within float32; bool does not count as a number."""
    return type(value) in (int, float) and SMALLEST <= value <= LARGEST  # type: ignore[operator]

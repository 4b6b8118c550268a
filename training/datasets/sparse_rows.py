"""A sparse matrix that grows by rows, in memory proportional to its entries."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np
from scipy.sparse import csr_matrix

# What a positive relevance may be once it is stored as float32 (below: it would become zero).
SMALLEST = float(np.finfo(np.float32).smallest_subnormal)
LARGEST = float(np.finfo(np.float32).max)


class SparseRows:
    """Rows of (column, value), appended one by one; `matrix` gives them as CSR."""

    def __init__(self) -> None:
        self._ends = array("q", [0])
        self._columns = array("i")
        self._values = array("f")

    def append(self, columns: Sequence[int], values: Sequence[float] | None = None) -> None:
        """Add a row; without `values` all are 1. The caller has checked ranges and repetitions."""
        self._columns.extend(columns)
        self._values.extend(values if values is not None else [1.0] * len(columns))
        self._ends.append(len(self._columns))

    def __len__(self) -> int:
        return len(self._ends) - 1

    def matrix(self, columns: int) -> csr_matrix:
        """Return [rows, `columns`] float32 with sorted columns; int32 indices unless too many."""
        matrix = csr_matrix(
            (
                np.array(self._values, dtype=np.float32),
                np.array(self._columns, dtype=np.int32),
                np.array(self._ends, dtype=np.int64),  # scipy narrows it where it fits
            ),
            shape=(len(self), columns),
        )
        matrix.sort_indices()
        return matrix


def is_relevance(value: object) -> bool:
    """Whether `value` is a positive number that float32 holds (bool is not a number here)."""
    return type(value) in (int, float) and SMALLEST <= value <= LARGEST  # type: ignore[operator]

"""Collects and checks the rows of an LF-XMC file while it is read.

Shapes: N rows, L labels, M metadata items.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_matrix

from service.core.errors import InvalidData
from training.datasets.dataset import Texts
from training.datasets.pair_weights import LARGEST, SMALLEST


class Rows(NamedTuple):
    """One file's content; a matrix is None if the file's rows refer to no labels or metadata."""

    texts: Texts
    labels_of: csr_matrix | None = None  # [N, L]
    metadata_of: csr_matrix | None = None  # [N, M]


class TextRows:
    """Uids and texts of one file; none may be empty, and no uid may be repeated."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._line_of: dict[str, int] = {}  # uid -> line, in row order
        self._texts: list[str] = []

    def append(self, *, uid: str, text: str, line: int) -> None:
        """Add a row; raises `InvalidData` for an empty uid or text and for a repeated uid."""
        if not uid.strip():
            raise InvalidData(self.path, "is empty", line=line, field="uid")
        if not text.strip():
            raise InvalidData(self.path, "the text is empty", line=line, field="title")
        first = self._line_of.setdefault(uid, line)
        if first != line:
            message = f"{uid!r} is already the uid of line {first}"
            raise InvalidData(self.path, message, line=line, field="uid")
        self._texts.append(text)

    def texts(self, *, may_be_empty: bool = False) -> Texts:
        """Return all rows; raises `InvalidData` if there are none, unless `may_be_empty`."""
        if not self._texts and not may_be_empty:
            raise InvalidData(self.path, "holds no rows")
        return Texts(uids=tuple(self._line_of), texts=tuple(self._texts))


class SparseRows:
    """Rows of a sparse matrix, in memory proportional to its entries."""

    def __init__(self) -> None:
        self._ends = array("q", [0])
        self._columns = array("i")
        self._values = array("f")

    def append(self, columns: Sequence[int], values: Sequence[float] | None = None) -> None:
        """Add a row, by default of ones. The caller must check ranges and repeated columns."""
        self._columns.extend(columns)
        self._values.extend(values if values is not None else [1.0] * len(columns))
        self._ends.append(len(self._columns))

    def __len__(self) -> int:
        return len(self._ends) - 1

    def matrix(self, columns: int) -> csr_matrix:
        """Return [rows, `columns`] float32 with sorted columns."""
        parts = (
            np.array(self._values, np.float32),
            np.array(self._columns, np.int32),
            np.array(self._ends, np.int64),  # scipy converts it to int32 if it fits
        )
        matrix = csr_matrix(parts, shape=(len(self), columns))
        matrix.sort_indices()
        return matrix


def is_relevance(value: object) -> bool:
    """Whether `value` is a positive number in float32's range; bool does not count as a number."""
    return type(value) in (int, float) and SMALLEST <= value <= LARGEST  # type: ignore[operator]

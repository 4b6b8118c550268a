"""A trained peer that ranks labels for texts, and the measurement of its rankings.

Shapes: n texts, k ranked labels, L labels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from training.datasets.dataset import Dataset
from training.evaluation.metrics import labels_to_rank
from training.evaluation.results import Result, measured

Ranked = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Ranking:
    """A peer with one method; `rank(texts, k)` returns labels [n, k], padded with -1."""

    method: str
    rank: Callable[[Sequence[str], int], Ranked]
    libraries: Mapping[str, str]
    device: str | None = None
    held_out_rows: int = 0

    def measure(self, dataset: Dataset) -> list[tuple[Result, NDArray[np.float64]]]:
        """Rank labels for all test rows; the only method is marked as chosen."""
        ranked = self.rank(dataset.test.instances.texts, labels_to_rank(dataset.test.filtered))
        return [measured(dataset, ranked, method=self.method, chosen=True)]


def padded(rows: Iterable[Sequence[int] | NDArray[Any]], *, top_k: int) -> Ranked:
    """Combine rows of ranked labels into one array [n, k], padded with -1."""
    lines = [np.asarray(row[:top_k], np.int64) for row in rows]
    ranked = np.full((len(lines), top_k), -1, np.int64)
    for row, labels in enumerate(lines):
        ranked[row, : len(labels)] = labels
    return ranked


def ranked_scores(scores: csr_matrix, *, top_k: int) -> Ranked:
    """The best labels of each row of `scores` [n, L] among its stored entries; ties by column."""

    def best(line: int) -> NDArray[Any]:
        entries = slice(scores.indptr[line], scores.indptr[line + 1])
        columns, values = scores.indices[entries], scores.data[entries]
        order: NDArray[Any] = columns[np.lexsort((columns, -values))]
        return order

    return padded((best(line) for line in range(scores.shape[0])), top_k=top_k)

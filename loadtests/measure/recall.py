"""Recall: the share of the truly nearest keys that the served search returns.

Shapes: B queries, b retrieved keys, d dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from service.core.memory.view import View
from service.core.types import Floats, Rows

_TIE = 1e-6  # similarities closer than this are equal: fp32 sums in another order


@dataclass(frozen=True, kw_only=True)
class Recall:
    """Mean and worst recall@depth over the queries."""

    queries: int
    depth: int
    mean: float
    worst: float


def measure_recall(view: View, vectors: Floats, *, depth: int) -> Recall:
    """Compare the view's search with an exact scan for query vectors [B, d]."""
    exact_similarities, exact_rows = view.retrieve(vectors, depth=depth, exact=True)
    _, rows = view.retrieve(vectors, depth=depth)
    shares = recall_per_query(view, vectors, rows, exact_rows, exact_similarities)
    return Recall(
        queries=len(vectors), depth=depth, mean=float(np.mean(shares)), worst=float(np.min(shares))
    )


def recall_per_query(
    view: View, vectors: Floats, rows: Rows, exact_rows: Rows, exact_similarities: Floats
) -> Sequence[float]:
    """The recall of each query [B] for retrieved `rows` [B, b] against exact ones [B, b].

    A row that ties with the last exact one counts. The similarities of retrieved rows are computed
    from the keys, since a search could report wrong ones.
    """
    shares = []
    for query, retrieved, nearest, similarities in zip(
        vectors, rows, exact_rows, exact_similarities, strict=True
    ):
        unique = np.unique(retrieved[retrieved >= 0])
        computed = view.vectors(unique).astype(np.float32) @ query
        correct = np.isin(unique, nearest) | (computed >= similarities[-1] - _TIE)
        shares.append(min(int(correct.sum()), len(nearest)) / len(nearest))
    return shares

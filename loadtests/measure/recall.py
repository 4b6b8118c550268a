"""Recall: the share of the truly nearest keys that the served search returns.

Shapes: B queries, d dimensions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from service.core.index.recall import recall_per_query
from service.core.memory.view import View
from service.core.types import Floats


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
    shares = recall_per_query(
        queries=vectors,
        retrieved=rows,
        exact_rows=exact_rows,
        exact_similarities=exact_similarities,
        vectors_of=view.vectors,
    )
    return Recall(
        queries=len(vectors), depth=depth, mean=float(np.mean(shares)), worst=float(np.min(shares))
    )

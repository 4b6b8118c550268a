"""Recall of the graph: which of the truly nearest keys does the served search find?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from service.core.memory.view import View
from service.core.types import Floats, Rows

_TIE = 1e-6  # similarities closer than this are equal: fp32 sums in another order


@dataclass(frozen=True, kw_only=True)
class Recall:
    """Mean and worst share of the `depth` nearest keys that were found."""

    queries: int
    depth: int
    mean: float
    worst: float


def measure_recall(view: View, vectors: Floats, *, depth: int) -> Recall:
    """Compare the view's search with an exact scan for encoded queries [B, d]."""
    exact_similarities, exact_rows = view.retrieve(vectors, depth=depth, exact=True)
    _, rows = view.retrieve(vectors, depth=depth)
    shares = recalls(view, vectors, rows, exact_rows, exact_similarities)
    return Recall(
        queries=len(vectors), depth=depth, mean=float(np.mean(shares)), worst=float(np.min(shares))
    )


def recalls(
    view: View, vectors: Floats, rows: Rows, exact_rows: Rows, exact_similarities: Floats
) -> Sequence[float]:
    """Share found, query by query [B]; a row that ties with the last exact one counts.

    The found rows' similarities are computed again from the keys, not taken from the search.
    """
    shares = []
    for query, found, wanted, similarities in zip(
        vectors, rows, exact_rows, exact_similarities, strict=True
    ):
        unique = np.unique(found[found >= 0])
        again = view.vectors(unique).astype(np.float32) @ query
        good = np.isin(unique, wanted) | (again >= similarities[-1] - _TIE)
        shares.append(min(int(good.sum()), len(wanted)) / len(wanted))
    return shares

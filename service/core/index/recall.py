"""Recall: the share of the truly nearest rows that a search returns.

Shapes: B queries, b retrieved rows, d dimensions.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from service.core.index.protocol import RowFilter, Segment
from service.core.types import Doubles, Floats, Halves, Rows

_TIE = 1e-6  # similarities closer than this are equal: fp32 sums in another order


def mean_recall(
    segment: Segment,
    queries: Floats,
    *,
    ef: int,
    exact: tuple[Floats, Rows],
    row_filter: RowFilter | None,
    vectors_of: Callable[[Rows], Halves],
) -> float:
    """Return the mean recall of a segment's searches [B, b] with the queue `ef`.

    `exact` are the similarities and rows [B, b] of an exact search with the same filter.
    """
    similarities, rows = exact
    _, retrieved = segment.search(queries, count=rows.shape[1], ef=ef, row_filter=row_filter)
    shares = recall_per_query(
        queries=queries,
        retrieved=retrieved,
        exact_rows=rows,
        exact_similarities=similarities,
        vectors_of=vectors_of,
    )
    return round(float(shares.mean()), 9)  # a mean of equal shares is not below them


def recall_per_query(
    *,
    queries: Floats,
    retrieved: Rows,
    exact_rows: Rows,
    exact_similarities: Floats,
    vectors_of: Callable[[Rows], Halves],
    tie: float = _TIE,
) -> Doubles:
    """Return the recall of each query [B], for `retrieved` rows [B, b] against exact ones [B, b].

    A row that ties with the last exact one, to within `tie`, counts. The similarities of retrieved
    rows are computed from their vectors, since a search could report wrong ones.
    """
    shares = np.empty(len(queries))
    lines = zip(queries, retrieved, exact_rows, exact_similarities, strict=True)
    for place, (query, rows, nearest, similarities) in enumerate(lines):
        nearest, unique = nearest[nearest >= 0], np.unique(rows[rows >= 0])
        computed = vectors_of(unique).astype(np.float32) @ query
        worst = similarities[len(nearest) - 1] if len(nearest) else np.inf
        correct = np.isin(unique, nearest) | (computed >= worst - tie)
        shares[place] = min(int(correct.sum()), len(nearest)) / max(1, len(nearest))
    return shares

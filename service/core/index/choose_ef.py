"""Finds the smallest queue length (ef) with which searches of a graph reach a recall.

Recall is the share of the truly nearest rows that a search returns.

Shapes: B queries, b retrieved rows, d dimensions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from service.core.index.exact import exact_search
from service.core.index.found_rows import TIE
from service.core.index.libraries import LARGEST_EF, SMALLEST_EF
from service.core.index.protocol import Keys, RowFilter, Segment
from service.core.types import Doubles, Floats, Halves, Rows

SAMPLED_KEYS = 200


def sampled(keys: Keys) -> Floats:
    """Return about `SAMPLED_KEYS` evenly spaced rows of keys [R, d], to measure recall with."""
    return keys[:: len(keys) // SAMPLED_KEYS + 1].astype(np.float32)


@dataclass(frozen=True, kw_only=True)
class ChosenEf:
    """A queue length, and the mean recall@depth that was measured with it."""

    ef: int
    recall: float
    depth: int
    queries: int

    def as_metrics(self) -> dict[str, float]:
        """Return the metrics for the manifest; recall is in percent."""
        return {
            f"search.recall@{self.depth}": 100 * self.recall,
            "search.recall_queries": float(self.queries),
        }


def smallest_ef(
    segment: Segment,
    keys: Keys,
    queries: Floats,
    *,
    recall: float,
    depth: int,
    row_filter: RowFilter | None = None,
    shortest: int | None = None,
    longest: int = LARGEST_EF,
) -> ChosenEf:
    """Return the smallest ef whose mean recall@depth over `queries` [B, d] is at least `recall`.

    Compares with an exact scan of `keys`. If no ef suffices, returns `longest` with its recall.
    Without a `row_filter`, all rows are searched. `shortest` is the first ef that is tried, by
    default `depth`. If it reaches the recall, it is returned.
    """
    if not len(keys):
        return ChosenEf(ef=shortest or SMALLEST_EF, recall=1.0, depth=depth, queries=0)
    depth = min(depth, len(keys))
    everything = RowFilter(start=0, stop=len(keys))
    exact = exact_search(keys, queries, count=depth, row_filter=row_filter or everything)

    def measured(ef: int) -> float:
        _, retrieved = segment.search(queries, count=depth, ef=ef, row_filter=row_filter)
        shares = recall_per_query(
            queries=queries, retrieved=retrieved, exact=exact, vectors_of=lambda rows: keys[rows]
        )
        return round(float(shares.mean()), 9)  # a mean of equal shares must not be below them

    first = min(max(depth, SMALLEST_EF) if shortest is None else shortest, longest)
    ef, reached = _smallest(measured, recall, first=first, longest=longest)
    return ChosenEf(ef=ef, recall=reached, depth=depth, queries=len(queries))


def _smallest(
    measured: Callable[[int], float], recall: float, *, first: int, longest: int
) -> tuple[int, float]:
    """Return the smallest ef from `first` to `longest` that reaches `recall`, and its recall.

    The ef is doubled until it suffices. Then a binary search finds the smallest.
    """
    short, ef, reached = first - 1, first, measured(first)
    while reached < recall and ef < longest:
        short, ef = ef, min(2 * ef, longest)
        reached = measured(ef)
    while reached >= recall and ef - short > 1:
        middle = (short + ef) // 2
        recall_there = measured(middle)
        if recall_there >= recall:
            ef, reached = middle, recall_there
        else:
            short = middle
    return ef, reached


def recall_per_query(
    *,
    queries: Floats,
    retrieved: Rows,
    exact: tuple[Floats, Rows],
    vectors_of: Callable[[Rows], Halves],
    tie: float = TIE,
) -> Doubles:
    """Return the recall of each query [B]: `retrieved` rows [B, b] compared with an exact search.

    `exact` holds its similarities and rows [B, b]. A row also counts if it ties with the last exact
    row, to within `tie`. Similarities are computed from the vectors, because a search could report
    wrong ones.
    """
    shares = np.empty(len(queries))
    for place, (query, rows, similarities, nearest) in enumerate(
        zip(queries, retrieved, *exact, strict=True)
    ):
        nearest, unique = nearest[nearest >= 0], np.unique(rows[rows >= 0])
        computed = vectors_of(unique).astype(np.float32) @ query
        worst = similarities[len(nearest) - 1] if len(nearest) else np.inf
        correct = np.isin(unique, nearest) | (computed >= worst - tie)
        shares[place] = min(int(correct.sum()), len(nearest)) / max(1, len(nearest))
    return shares

"""The smallest queue length (ef) with which a graph reaches a recall, on queries of its own kind.

Shapes: B queries, d dimensions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from service.core.errors import InvalidInput
from service.core.index.exact import exact_search
from service.core.index.libraries import LARGEST_EF, SMALLEST_EF
from service.core.index.protocol import RowFilter, Segment
from service.core.index.recall import mean_recall
from service.core.types import Floats, Halves


@dataclass(frozen=True, kw_only=True)
class ChosenEf:
    """A queue length, and the mean recall@depth that it was measured to have."""

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


def choose_ef(
    segment: Segment,
    keys: Halves,
    queries: Floats,
    *,
    recall: float,
    depth: int,
    row_filter: RowFilter,
) -> ChosenEf:
    """Return the smallest ef whose mean recall@depth over `queries` [B, d] is at least `recall`.

    Compares with an exact scan of `keys`. Raises `InvalidInput` if no queue is long enough.
    """
    chosen = smallest_ef(segment, keys, queries, recall=recall, depth=depth, row_filter=row_filter)
    if chosen.recall < recall:
        raise InvalidInput(
            f"recall {recall:g} cannot be reached: the longest queue, ef {chosen.ef}, has"
            f" {chosen.recall:.4f}; ask for less, or build a denser graph (--m, --ef-construction)"
        )
    return chosen


def smallest_ef(
    segment: Segment,
    keys: Halves,
    queries: Floats,
    *,
    recall: float,
    depth: int,
    row_filter: RowFilter | None = None,
    longest: int = LARGEST_EF,
) -> ChosenEf:
    """Return what `choose_ef` does, or the `longest` ef with its recall where that is too short.

    Without a `row_filter`, all rows are searched.
    """
    exact = exact_search(
        keys,
        queries,
        count=depth,
        row_filter=row_filter or RowFilter(start=0, stop=len(keys)),
    )

    def measured(ef: int) -> float:
        return mean_recall(
            segment,
            queries,
            ef=ef,
            exact=exact,
            row_filter=row_filter,
            vectors_of=lambda rows: keys[rows],
        )

    first = min(max(depth, SMALLEST_EF), longest)
    ef, reached = _smallest(measured, recall, first=first, longest=longest)
    return ChosenEf(ef=ef, recall=reached, depth=depth, queries=len(queries))


def _smallest(
    measured: Callable[[int], float], recall: float, *, first: int, longest: int
) -> tuple[int, float]:
    """Return the smallest ef of `first` to `longest` that reaches `recall`, and its recall.

    A queue shorter than the depth works like one of that length, so the search starts there. The
    length is doubled until it suffices, then halved between the last two.
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

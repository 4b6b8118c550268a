"""Keep representative rows: a greedy facility location over neighbours that share labels."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence

import numpy as np

from service.core.types import Rows
from training.reduction.carriers import Carriers, find_carriers
from training.reduction.memory import ReducedMemory, WholeMemory, kept


def representative(
    memory: WholeMemory, budgets: Sequence[int], *, rng: np.random.Generator
) -> Iterator[ReducedMemory]:
    """Keep the rows that together are nearest to all rows that share their labels."""
    order = facility_order(find_carriers(memory), rng=rng)
    for rows in budgets:
        yield kept(memory, order[:rows])


def facility_order(carriers: Carriers, *, rng: np.random.Generator) -> Rows:
    """Rows [N] by greedy maximisation of the facility location, best first.

    Every training row is a query that must find its own labels without its own row. For each of
    its votes the sum adds s(the nearest kept row that carries it, or the label's own key), which
    is tau times the log of the largest addend of its score (Eq. 7). Submodular, so lazily greedy.
    Rows without any gain follow in random order.
    """
    rows = len(carriers.votes) - 1
    by_carrier = np.argsort(carriers.carrier, kind="stable")
    start = np.searchsorted(carriers.carrier[by_carrier], np.arange(rows + 1))
    vote, similarity = carriers.vote[by_carrier], carriers.similarity[by_carrier]
    best = carriers.floor.copy()  # [E]

    def gain(row: int) -> float:
        cut = slice(start[row], start[row + 1])
        return float((similarity[cut] - best[vote[cut]]).clip(0.0).sum())

    heap = [(-gain(row), place, row) for place, row in enumerate(rng.permutation(rows))]
    heapq.heapify(heap)
    order = []
    while heap:
        _, place, row = heapq.heappop(heap)
        now = -gain(row)
        if heap and now > heap[0][0]:
            heapq.heappush(heap, (now, place, row))
            continue
        cut = slice(start[row], start[row + 1])
        best[vote[cut]] = np.maximum(best[vote[cut]], similarity[cut])
        order.append(int(row))
    return np.array(order, np.int64)

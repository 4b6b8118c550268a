"""Keeps representative rows by greedy facility location over neighbours that share labels."""

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

    Every training row is a query whose labels must be retrieved without that row. Each of its votes
    adds its similarity to the nearest kept row with the same label, or to the label's key if that
    is nearer: tau times the log of the largest addend of the label's score (Eq. 7). The sum is
    submodular, so gains only fall, and a row's gain is computed again only when the row comes first
    (lazy greedy). Rows without any gain follow in random order.
    """
    rows = len(carriers.votes) - 1
    by_carrier = np.argsort(carriers.carrier, kind="stable")
    start = np.searchsorted(carriers.carrier[by_carrier], np.arange(rows + 1))
    vote, similarity = carriers.vote[by_carrier], carriers.similarity[by_carrier]
    best = carriers.floor.copy()  # [E]

    def gain(row: int) -> float:
        cut = slice(start[row], start[row + 1])
        return float((similarity[cut] - best[vote[cut]]).clip(0.0).sum())

    heap = [(-gain(row), tie_break, row) for tie_break, row in enumerate(rng.permutation(rows))]
    heapq.heapify(heap)
    order = []
    while heap:
        _, tie_break, row = heapq.heappop(heap)
        current = -gain(row)
        if heap and current > heap[0][0]:
            heapq.heappush(heap, (current, tie_break, row))
            continue
        cut = slice(start[row], start[row + 1])
        best[vote[cut]] = np.maximum(best[vote[cut]], similarity[cut])
        order.append(int(row))
    return np.array(order, np.int64)

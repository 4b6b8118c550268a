"""Drop rows first whose labels their neighbours have too."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence

import numpy as np

from service.core.types import Bools, Rows
from training.reduction.carriers import Carriers, find_carriers
from training.reduction.memory import ReducedMemory, WholeMemory, kept


def redundant(
    memory: WholeMemory, budgets: Sequence[int], *, rng: np.random.Generator
) -> Iterator[ReducedMemory]:
    """Repeatedly drop the row whose removal loses least."""
    order = removal_order(find_carriers(memory))
    for rows in budgets:
        yield kept(memory, order[len(order) - rows :])


def removal_order(carriers: Carriers) -> Rows:
    """All rows [N] in the order in which they are dropped.

    A row's loss is the sum over its labels of 1 - s(the nearest kept row that carries it, or the
    label's own key). It only grows as rows go, so one that is still the least when looked at again
    is the least of all.
    """
    rows = len(carriers.votes) - 1
    stays = np.ones(rows, bool)
    heap = [(loss(carriers, row, stays=stays), row) for row in range(rows)]
    heapq.heapify(heap)
    order = []
    while heap:
        _, row = heapq.heappop(heap)
        now = loss(carriers, row, stays=stays)
        if heap and now > heap[0][0]:
            heapq.heappush(heap, (now, row))
            continue
        stays[row] = False
        order.append(row)
    return np.array(order, np.int64)


def loss(carriers: Carriers, row: int, *, stays: Bools) -> float:
    """The loss for a row's labels if it is dropped, given which rows stay [N]."""
    votes = slice(carriers.votes[row], carriers.votes[row + 1])
    pairs = slice(carriers.start[votes.start], carriers.start[votes.stop])
    nearest = carriers.floor[votes].copy()
    there = stays[carriers.carrier[pairs]]
    np.maximum.at(
        nearest,
        carriers.vote[pairs][there] - votes.start,
        carriers.similarity[pairs][there],
    )
    return float((1.0 - nearest).clip(0.0).sum())

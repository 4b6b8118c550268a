"""Rare labels first: every label's first row counts most, its second less, and so on."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence

import numpy as np

from service.core.types import Rows
from training.reduction.memory import ReducedMemory, WholeMemory, kept, presence


def coverage(
    memory: WholeMemory, budgets: Sequence[int], *, rng: np.random.Generator
) -> Iterator[ReducedMemory]:
    """Keep the rows that best cover the labels; vectors play no part."""
    order = coverage_order(memory, rng=rng)
    for rows in budgets:
        yield kept(memory, order[:rows])


def coverage_order(memory: WholeMemory, *, rng: np.random.Generator) -> Rows:
    """Rows by greedy maximisation of sum over labels of H(rows that carry it), best first.

    H(c) = 1 + 1/2 + ... + 1/c, so a row is worth the sum of 1 / (c + 1) over its labels. The sum is
    submodular: a row's worth only falls, and one that is still the best when looked at again is
    the best of all.
    """
    y = presence(memory.labels_of)
    carried = np.zeros(y.shape[1])  # c, [L]

    def worth(row: int) -> float:
        return float((1.0 / (carried[y.indices[y.indptr[row] : y.indptr[row + 1]]] + 1.0)).sum())

    heap = [(-worth(row), place, row) for place, row in enumerate(rng.permutation(y.shape[0]))]
    heapq.heapify(heap)
    order = []
    while heap:
        _, place, row = heapq.heappop(heap)
        now = -worth(row)
        if heap and now > heap[0][0]:
            heapq.heappush(heap, (now, place, row))
            continue
        carried[y.indices[y.indptr[row] : y.indptr[row + 1]]] += 1.0
        order.append(int(row))
    return np.array(order, np.int64)

"""Rows drawn by chance: the yardstick of the others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from training.reduction.memory import ReducedMemory, WholeMemory, kept


def random(
    memory: WholeMemory, budgets: Sequence[int], *, rng: np.random.Generator
) -> Iterator[ReducedMemory]:
    """Keep random rows; each smaller memory is a part of the larger ones."""
    order = rng.permutation(len(memory.instances))
    for rows in budgets:
        yield kept(memory, order[:rows])

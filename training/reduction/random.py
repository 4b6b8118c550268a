"""Rows drawn by chance: the yardstick of the others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from training.reduction.memory import Memory, Reduced, kept


def random(
    memory: Memory, budgets: Sequence[int], *, rng: np.random.Generator
) -> Iterator[Reduced]:
    """Each smaller memory is part of the larger."""
    order = rng.permutation(len(memory.instances))
    for rows in budgets:
        yield kept(memory, order[:rows])

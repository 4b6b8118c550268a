"""Methods that make a memory smaller by dropping or merging instance keys.

RAE-XMC leaves this open (section 6). A method takes a memory and budgets in rows, in falling order,
and yields a reduced memory for each. `python -m training budget` measures their loss of quality.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np

from service.core.errors import InvalidInput
from training.reduction.coverage import coverage
from training.reduction.memory import ReducedMemory, WholeMemory, kept
from training.reduction.merge import merge
from training.reduction.random import random
from training.reduction.redundant import redundant
from training.reduction.representative import representative

SEED = 0


class Method(Protocol):
    """The signature of a method."""

    def __call__(
        self, memory: WholeMemory, budgets: Sequence[int], *, rng: np.random.Generator
    ) -> Iterator[ReducedMemory]:
        """One reduced memory for each budget, in rows, falling, all below N."""
        ...


METHODS: dict[str, Method] = {
    "random": random,
    "coverage": coverage,
    "redundant": redundant,
    "representative": representative,
    "merge": merge,
}


def reduce(
    memory: WholeMemory, *, method: str, shares: Sequence[float]
) -> dict[float, ReducedMemory]:
    """Reduced memories by their share of the instances, the largest first.

    Raises `InvalidInput` for an unknown method and a share outside 0..1.
    """
    check_method(method)
    shares = sorted(set(shares), reverse=True)
    budgets = [budget_rows(share, total=len(memory.instances)) for share in shares]
    whole = sum(budget == len(memory.instances) for budget in budgets)
    everything = kept(memory, np.arange(len(memory.instances)))
    smaller = METHODS[method](memory, budgets[whole:], rng=np.random.default_rng(SEED))
    return dict(zip(shares, [*[everything] * whole, *smaller], strict=True))


def check_method(method: str) -> None:
    """Raise `InvalidInput` for a name that is not in `METHODS`."""
    if method not in METHODS:
        known = ", ".join(METHODS)
        raise InvalidInput(f"reduction {method!r} is unknown; known are {known}", field="reduction")


def budget_rows(share: float, *, total: int) -> int:
    """The number of rows of a share of `total`, at least 1."""
    if not 0.0 < share <= 1.0:
        raise InvalidInput(
            f"a share of the instances must lie above 0 and not above 1, not {share:g}",
            field="instances",
        )
    return min(total, max(1, round(share * total)))

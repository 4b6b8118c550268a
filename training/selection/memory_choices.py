"""The memory's temperature, lambda and b, chosen on held-out rows.

RAE-XMC keeps one temperature for training and memory. Another one is best for the memory on both of
our data sets, so it is chosen here; nothing is trained again for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from training.checkpoints.choices import Choices
from training.selection.validation import HeldOutRetrieval, criterion

TAUS = (0.03, 0.04, 0.05, 0.06, 0.08, 0.1, 0.12, 0.15, 0.2)
MEMORIZATIONS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
DEPTHS = (50, 100, 200, 400)
COARSE = (0.3, 0.5, 0.7)  # the lambdas that each temperature is tried with

Told = Callable[[Choices, dict[str, float]], None]


def choose_on(
    held_out: HeldOutRetrieval,
    start: Choices,
    *,
    metrics: Sequence[str],
    told: Told = lambda choices, found: None,
) -> Choices:
    """First the temperature at the start's b, then b and lambda together.

    What comes first wins where two are equal: `DEPTHS` rise, and a smaller one is quicker. `told`
    hears of everything that was tried.
    """

    def score(tried: Choices) -> float:
        found = held_out.metrics(tau=tried.tau, memorization=tried.memorization, depth=tried.depth)
        told(tried, found)
        return criterion({tried.memorization: found}, metrics)

    taus = [
        replace(start, tau=tau, memorization=memorization)
        for tau in sorted({start.tau, *TAUS})
        for memorization in COARSE
    ]
    warmed = max(taus, key=score)
    return max(
        (
            replace(warmed, depth=depth, memorization=memorization)
            for depth in DEPTHS
            for memorization in MEMORIZATIONS
        ),
        key=score,
    )

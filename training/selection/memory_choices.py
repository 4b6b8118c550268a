"""Chooses the memory's temperature, lambda and b on held-out rows.

RAE-XMC uses the training's temperature in the memory, too. On both of our data sets the memory
predicts best with a different one, so it is chosen here, without training again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from training.checkpoints.choices import Choices
from training.selection.validation import HeldOutRetrieval, criterion

TAUS = (0.03, 0.04, 0.05, 0.06, 0.08, 0.1, 0.12, 0.15, 0.2)
MEMORIZATIONS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
DEPTHS = (50, 100, 200, 400)
COARSE_MEMORIZATIONS = (0.3, 0.5, 0.7)  # lambdas with which each temperature is tried

Tried = Callable[[Choices, dict[str, float]], None]


def choose_on(
    held_out: HeldOutRetrieval,
    start: Choices,
    *,
    metrics: Sequence[str],
    on_tried: Tried = lambda choices, metrics: None,
) -> Choices:
    """Choose the temperature at the b of `start`, then b and lambda together.

    Of equally good choices the first is taken: `DEPTHS` rise, and a smaller depth is faster.
    `on_tried` is called with all tried choices and their metrics.
    """

    def score(tried: Choices) -> float:
        measured = held_out.metrics(
            tau=tried.tau, memorization=tried.memorization, depth=tried.depth
        )
        on_tried(tried, measured)
        return criterion({tried.memorization: measured}, metrics)

    taus = [
        replace(start, tau=tau, memorization=memorization)
        for tau in sorted({start.tau, *TAUS})
        for memorization in COARSE_MEMORIZATIONS
    ]
    with_best_tau = max(taus, key=score)
    return max(
        (
            replace(with_best_tau, depth=depth, memorization=memorization)
            for depth in DEPTHS
            for memorization in MEMORIZATIONS
        ),
        key=score,
    )

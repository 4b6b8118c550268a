"""Chooses the memory's temperature, lambda, b, weight of words and share of hubs.

RAE-XMC uses the training temperature in the memory, too. On both of our data sets a different one
predicts best, so it is chosen here, without further training.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from service.core.types import Floats, Halves
from training.checkpoints.choices import UNCHOSEN, Choices
from training.datasets.dataset import Dataset
from training.selection.validation import (
    HeldOutRetrieval,
    Slices,
    ValidationSettings,
    criterion,
    retrieve_held_out,
)

TAUS = (0.03, 0.04, 0.05, 0.06, 0.08, 0.1, 0.12, 0.15, 0.2)
MEMORIZATIONS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
DEPTHS = (50, 100, 200, 400)
WORDS = (0.0, 0.05, 0.1, 0.2, 0.4, 0.8, 1.2)  # that `fit` and `export bundle` try
HUBS = (0.0, 0.25, 0.5)  # shares of hubness that both try; CSLS subtracts half
COARSE_MEMORIZATIONS = (0.3, 0.5, 0.7)  # lambdas with which each temperature is tried first

Tried = Callable[[Choices, dict[str, float]], None]


def choose_on(
    held_out: HeldOutRetrieval,
    start: Choices,
    *,
    metrics: Sequence[str],
    words: Sequence[float] = (0.0,),
    hubs: Sequence[float] = (0.0,),
    on_tried: Tried = lambda choices, metrics: None,
) -> Choices:
    """Choose the temperature at the b of `start`, then b and lambda, then `words`, then `hubs`.

    The first of equally good choices wins; `DEPTHS` is ascending, because a smaller depth is
    faster. `on_tried` is called with each tried choice and its metrics.
    """

    def score(tried: Choices) -> float:
        measured = held_out.metrics(tried)
        on_tried(tried, measured)
        return criterion({tried.memorization: measured}, metrics)

    taus = [
        replace(start, tau=tau, memorization=memorization)
        for tau in sorted({start.tau, *TAUS})
        for memorization in COARSE_MEMORIZATIONS
    ]
    with_best_tau = max(taus, key=score)
    with_best_depth = max(
        (
            replace(with_best_tau, depth=depth, memorization=memorization)
            for depth in DEPTHS
            for memorization in MEMORIZATIONS
        ),
        key=score,
    )
    with_best_words = max((replace(with_best_depth, words=weight) for weight in words), key=score)
    return max((replace(with_best_words, hubs=share) for share in hubs), key=score)


def choices_for(
    dataset: Dataset,
    instances: Floats | Halves,
    labels: Floats | Halves,
    *,
    slices: Slices,
    words: Sequence[float] = (0.0,),
    hubs: Sequence[float] = (0.0,),
) -> Choices:
    """Return what `choose_on` chooses for the vectors of an encoder, on held-out rows.

    `instances` [N, d] are the vectors of the training rows, `labels` [L, d] those of the labels.
    """
    if not len(slices.held_out):
        return UNCHOSEN
    depth = max(*DEPTHS, UNCHOSEN.depth)
    held_out = retrieve_held_out(dataset, slices, instances, labels, depth=depth)
    metrics = ValidationSettings().metrics
    return choose_on(held_out, UNCHOSEN, metrics=metrics, words=words, hubs=hubs)

"""Chooses the memory's temperature, lambda, b, weight of words and share of hubs.

What is best on held-out rows, which stand for new queries, must not harm known queries: see
`keeping_known`.

RAE-XMC uses the training temperature in the memory, too. On both of our data sets a different one
predicts best, so it is chosen here, without further training.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache

from service.core.types import Floats, Halves
from training.checkpoints.choices import UNCHOSEN, Choices
from training.datasets.dataset import Dataset
from training.evaluation.known_queries import FIRST
from training.progress import say
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
MOST_LOST = 0.5  # points by which a choice may lower the share of known queries answered right
COARSE_MEMORIZATIONS = (0.3, 0.5, 0.7)  # lambdas with which each temperature is tried first

Tried = Callable[[Choices, dict[str, float]], None]


def keeping_known(
    tried: Iterable[Choices],
    *,
    score: Callable[[Choices], float],
    known: Callable[[Choices], float],
    best_known: float,
    tell: Callable[[str], None] = say,
) -> Choices:
    """Return the choice with the best score among those that keep known queries right.

    `known` is the share of known queries answered right, in percent; it may lie `MOST_LOST` points
    below `best_known`. If all are below, the one that keeps most is returned. The first of equally
    good choices wins. `tell` is called if a better score was given up.
    """
    ordered = sorted(tried, key=score, reverse=True)  # stable
    kept = next((one for one in ordered if known(one) >= best_known - MOST_LOST), None)
    if kept is None:
        kept = max(ordered, key=known)
    if kept != ordered[0]:
        tell(
            f"{ordered[0].predictor} is best for new queries, but answers only"
            f" {known(ordered[0]):.1f} % of the clicks of known queries right, not"
            f" {known(kept):.1f} %: {kept.predictor} is chosen"
        )
    return kept


def choose_on(
    held_out: HeldOutRetrieval,
    start: Choices,
    *,
    metrics: Sequence[str],
    words: Sequence[float] = (0.0,),
    hubs: Sequence[float] = (0.0,),
    on_tried: Tried = lambda choices, metrics: None,
    tell: Callable[[str], None] = say,
) -> Choices:
    """Choose the temperature at the b of `start`, then b and lambda, then `words`, then `hubs`.

    Each step is `keeping_known`, against the best of the choices before it. The first of equally
    good choices wins; `DEPTHS` is ascending, because a smaller depth is faster. `on_tried` is
    called with each tried choice and its metrics, `tell` if known queries overruled a choice.
    """
    known = cache(lambda choices: held_out.known_metrics(choices)[FIRST])
    best_known = known(start)

    def score(tried: Choices) -> float:
        measured = held_out.metrics(tried)
        on_tried(tried, measured)
        return criterion({tried.memorization: measured}, metrics)

    def best(tried: Iterable[Choices]) -> Choices:
        nonlocal best_known
        chosen = keeping_known(tried, score=score, known=known, best_known=best_known, tell=tell)
        best_known = max(best_known, known(chosen))
        return chosen

    taus = [
        replace(start, tau=tau, memorization=memorization)
        for tau in sorted({start.tau, *TAUS})
        for memorization in COARSE_MEMORIZATIONS
    ]
    with_best_tau = best(taus)
    with_best_depth = best(
        replace(with_best_tau, depth=depth, memorization=memorization)
        for depth in DEPTHS
        for memorization in MEMORIZATIONS
    )
    with_best_words = best(replace(with_best_depth, words=weight) for weight in words)
    return best(replace(with_best_words, hubs=share) for share in hubs)


def choices_for(
    dataset: Dataset,
    instances: Floats | Halves,
    labels: Floats | Halves,
    *,
    slices: Slices,
    words: Sequence[float] = (0.0,),
    hubs: Sequence[float] = (0.0,),
    tell: Callable[[str], None] = say,
) -> Choices:
    """Return what `choose_on` chooses for the vectors of an encoder, on held-out rows.

    `instances` [N, d] are the vectors of the training rows, `labels` [L, d] those of the labels.
    """
    if not len(slices.held_out):
        return UNCHOSEN
    depth = max(*DEPTHS, UNCHOSEN.depth)
    held_out = retrieve_held_out(dataset, slices, instances, labels, depth=depth)
    metrics = ValidationSettings().metrics
    return choose_on(held_out, UNCHOSEN, metrics=metrics, words=words, hubs=hubs, tell=tell)

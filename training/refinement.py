"""K, tau0, tau1 and ours of Algorithm 1, chosen on labels that nothing was trained with.

Where a recipe hides labels (`validation.labels`), they are represented from all others and looked
for among themselves, by the held-out rows that have one: classifiers have seen the other rows, and
stand nearer to them than they will to anybody's query. Without, labels are cut into folds, each
asked for by the held-out rows: encoder, classifiers and combiner have seen them, so a text says
more here than it will of a novel label, and what is chosen trusts it too much (debian-seealso: a
strength of 0.1, and 0.35 on hidden labels).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from operator import itemgetter

import numpy as np

from service.core.novel import Refinement
from training.novel_fold import DEEPEST, METRICS, Fold, HeldOut, folds

SHORTLISTS = (5, 20, 50, 100, DEEPEST)
POOLINGS = (0.05, 0.1, 0.2)
THRESHOLDS = (-1.0, 0.15, 0.3, 0.45)
CENTRINGS = (0.0, 1.0, 2.0, 3.0, 4.0)
STRENGTHS = (0.1, 0.2, 0.35, 0.5, 0.75, 1.0)
QUERY_WEIGHTS = (0.0, 0.25, 0.5, 1.0)
PAPERS = Refinement(shortlist=200, text_threshold=0.15, query_threshold=0.15)  # Table 10


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """A refinement, and the mean of `METRICS` in percent that it was chosen by.

    The mean is that among novel labels and among all, so that those who are found well do not crowd
    out seen ones. `text` is that of the labels' texts alone; nothing was asked where it is None.
    """

    refinement: Refinement
    text: float | None = None
    zero_shot: float | None = None
    one_shot: float | None = None

    def __str__(self) -> str:
        """A line to be said."""
        if self.text is None:
            return "novel labels: nobody asked for one, the paper's numbers stay"
        return (
            f"novel labels, mean of {', '.join(METRICS)}: text {self.text:.2f},"
            f" zero-shot {self.zero_shot:.2f}, one-shot {self.one_shot:.2f}"
        )


def choose_refinement(held_out: HeldOut, *, pooled: bool = False, seed: int) -> Chosen:
    """First what zero-shot needs, K, tau0 and strength; then, of one-shot, the rest.

    Where survivors are `pooled`, so is their temperature, and then centring and strength again.

    What comes first wins where two are equal. The paper's numbers stay where no held-out row has a
    label to be found.
    """
    cut = list(folds(held_out, seed=seed))
    if not cut:
        return Chosen(refinement=PAPERS)
    plain = [
        replace(
            PAPERS,
            shortlist=shortlist,
            text_threshold=threshold,
            pooling=pooling,
            centring=2.0 if pooled else 0.0,
        )
        for shortlist, threshold, pooling in product(
            SHORTLISTS, THRESHOLDS, POOLINGS if pooled else (0.0,)
        )
    ]
    zero_shot, chosen = _best(cut, plain, _by_strength, STRENGTHS, revealed=False)
    if pooled:
        centred = [replace(chosen, centring=centring) for centring in CENTRINGS]
        zero_shot, chosen = _best(cut, centred, _by_strength, STRENGTHS, revealed=False)
    revealed = [replace(chosen, query_threshold=threshold) for threshold in THRESHOLDS]
    one_shot, chosen = _best(cut, revealed, _by_query_weight, QUERY_WEIGHTS, revealed=True)
    return Chosen(
        refinement=chosen,
        text=float(np.mean([fold.found(fold.texts) for fold in cut])),
        zero_shot=zero_shot,
        one_shot=one_shot,
    )


def _best(
    cut: Sequence[Fold],
    refinements: Sequence[Refinement],
    moving: Callable[[Refinement, float], Refinement],
    values: Sequence[float],
    *,
    revealed: bool,
) -> tuple[float, Refinement]:
    """How good the best is, and it; `values` move C(u), which is made once for each refinement."""

    def tried() -> Iterator[tuple[float, Refinement]]:
        for refinement in refinements:
            combined = [fold.combined(refinement, revealed=revealed) for fold in cut]
            for value in values:
                one = moving(refinement, value)
                keys = [
                    fold.keys(own, one, revealed=revealed)
                    for fold, own in zip(cut, combined, strict=True)
                ]
                scores = [fold.found(own) for fold, own in zip(cut, keys, strict=True)]
                yield float(np.mean(scores)), one

    return max(tried(), key=itemgetter(0))


def _by_strength(refinement: Refinement, strength: float) -> Refinement:
    return replace(refinement, strength=strength)


def _by_query_weight(refinement: Refinement, weight: float) -> Refinement:
    return replace(refinement, query_weight=weight)

"""K, tau0, tau1 and ours of Algorithm 1, chosen on labels that nothing was trained with.

Where a recipe hides labels (`validation.labels`), they are represented from all others and looked
for among themselves, by the held-out rows that have one: classifiers have seen the other rows, and
stand nearer to them than they will to anybody's query. Without, labels are cut into folds, each
asked for by the held-out rows: encoder, classifiers and combiner have seen them, so a text says
more here than it will of a novel label, and what is chosen trusts it too much (debian-seealso: a
strength of 0.1, and 0.35 on hidden labels).

The best is where the metric that gains least over the texts gains most, among themselves, of those
that cost nothing among all labels: enriched, a label stands nearer to queries than seen ones do by
their texts, to queries for seen ones, too. Its length, with a query and without, answers for that,
which changes nothing among themselves; the longest that will do is taken. A posted query votes
beside its label's key, so how far the key leans towards it is chosen with that vote.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from operator import itemgetter

import numpy as np

from service.core.bundle.manifest import Refinement
from service.core.types import Floats
from training.selection.hidden_label_folds import (
    DEEPEST,
    METRICS,
    Figures,
    LabelFold,
    LabelFoldData,
    folds,
)

SHORTLISTS = (20, 50, DEEPEST)
POOLINGS = tuple(product((0.1, 0.2), (0.0, 0.5, 1.0)))  # temperature, residual
THRESHOLDS = (-1.0, 0.15, 0.3, 0.45)
STRENGTHS = (0.1, 0.25, 0.5, 0.75, 1.0)
QUERY_WEIGHTS = (0.0, 0.25, 0.5, 1.0)
LENGTHS = (1.08, 1.04, 1.0, 0.96, 0.92, 0.88, 0.84, 0.8)
ASKED_AMONG_ALL = 12  # of those that find novel labels best
PAPERS = Refinement(shortlist=200, text_threshold=0.15, query_threshold=0.15)  # Table 10

Moving = Callable[[Refinement, float], Refinement]


@dataclass(frozen=True, kw_only=True)
class Found:
    """`METRICS`, in percent: of the rows that ask for a novel label, and of all."""

    among_novel: Figures
    among_all: Figures

    def __str__(self) -> str:
        """P@1 1, P@5 2, R@30 3 (among all 4, 5, 6)."""
        novel = ", ".join(f"{name} {figure:.2f}" for name, figure in self.among_novel.items())
        return f"{novel} (among all {', '.join(f'{own:.2f}' for own in self.among_all.values())})"


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """A refinement, and how well labels are found with it.

    `text` and `zero_shot` are without a query, `text_and_query` and `one_shot` with one, which
    votes beside among novel labels; nothing was asked where they are None.
    """

    refinement: Refinement
    text: Found | None = None
    zero_shot: Found | None = None
    text_and_query: Found | None = None
    one_shot: Found | None = None

    def __str__(self) -> str:
        """A line to be said."""
        if self.text is None:
            return "novel labels: nobody asked for one, the paper's numbers stay"
        return (
            f"novel labels: text {self.text}; zero-shot {self.zero_shot};"
            f" text and a query {self.text_and_query}; one-shot {self.one_shot}"
        )


def choose_refinement(held_out: LabelFoldData, *, pooled: bool = False, seed: int) -> Chosen:
    """First what zero-shot needs, K, tau0, strength and length; then one-shot's part.

    Where survivors are `pooled`, temperature and residual are chosen with K. What comes first wins
    where two are equal. The paper's numbers stay where no held-out row has a label to be found.
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
            residual=residual,
        )
        for shortlist, threshold, (pooling, residual) in product(
            SHORTLISTS, THRESHOLDS, POOLINGS if pooled else ((0.0, 0.0),)
        )
    ]
    texts = [fold.texts for fold in cut]
    text = _found(cut, texts, revealed=False)
    best = _best(cut, plain, text, _by_strength, STRENGTHS, revealed=False)
    zero_shot, chosen = _first_for_nothing(cut, best, text, _by_length, revealed=False)
    thresholds = [replace(chosen, query_threshold=threshold) for threshold in THRESHOLDS]
    beside = _found(cut, texts, revealed=True)
    best = _best(cut, thresholds, beside, _by_query_weight, QUERY_WEIGHTS, revealed=True)
    one_shot, chosen = _first_for_nothing(cut, best, beside, _by_query_length, revealed=True)
    return Chosen(
        refinement=chosen,
        text=text,
        zero_shot=zero_shot,
        text_and_query=beside,
        one_shot=one_shot,
    )


def least_gain(found: Figures, text: Figures) -> float:
    """Of the metric that gains least over the texts, as a share of what they have."""
    return min(found[name] / max(text[name], 1e-9) - 1.0 for name in METRICS)


def gained(found: Found, text: Found) -> float:
    """What is gained over the texts among all labels, by the mean of the metrics; at most 0."""
    means = (float(np.mean(list(one.among_all.values()))) for one in (found, text))
    return min(0.0, next(means) - next(means))


def _best(
    cut: Sequence[LabelFold],
    refinements: Sequence[Refinement],
    text: Found,
    moving: Moving,
    values: Sequence[float],
    *,
    revealed: bool,
) -> list[Refinement]:
    """Those that find novel labels best."""
    tried = (
        (least_gain(_among_novel(cut, keys, revealed=revealed), text.among_novel), one)
        for one, keys in _moved(cut, refinements, moving, values, revealed=revealed)
    )
    ordered = sorted(tried, key=itemgetter(0), reverse=True)  # stable
    return [one for _, one in ordered[:ASKED_AMONG_ALL]]


def _first_for_nothing(
    cut: Sequence[LabelFold],
    refinements: Sequence[Refinement],
    text: Found,
    moving: Moving,
    *,
    revealed: bool,
) -> tuple[Found, Refinement]:
    """The first that costs nothing among all labels, or the one that costs least."""
    tried: list[tuple[Found, Refinement]] = []
    for one, keys in _moved(cut, refinements, moving, LENGTHS, revealed=revealed):
        tried.append((_found(cut, keys, revealed=revealed), one))
        if gained(tried[-1][0], text) == 0.0:
            return tried[-1]
    return max(tried, key=lambda found: gained(found[0], text))


def _moved(
    cut: Sequence[LabelFold],
    refinements: Sequence[Refinement],
    moving: Moving,
    values: Sequence[float],
    *,
    revealed: bool,
) -> Iterator[tuple[Refinement, list[Floats]]]:
    """Keys [f, d] of each fold; `values` move C(u), which is made once for each refinement."""
    for refinement in refinements:
        combined = [fold.combined(refinement, revealed=revealed) for fold in cut]
        for value in values:
            one = moving(refinement, value)
            yield (
                one,
                [
                    fold.keys(own, one, revealed=revealed)
                    for fold, own in zip(cut, combined, strict=True)
                ],
            )


def _found(cut: Sequence[LabelFold], keys: Sequence[Floats], *, revealed: bool) -> Found:
    """How novel labels are found by their keys, [f, d] of each fold."""
    pairs = zip(cut, keys, strict=True)
    return Found(
        among_novel=_among_novel(cut, keys, revealed=revealed),
        among_all=_mean([fold.among_all.found(own) for fold, own in pairs]),
    )


def _among_novel(cut: Sequence[LabelFold], keys: Sequence[Floats], *, revealed: bool) -> Figures:
    pairs = zip(cut, keys, strict=True)
    return _mean([fold.found(own, revealed=revealed) for fold, own in pairs])


def _mean(found: Sequence[Figures]) -> Figures:
    return {name: float(np.mean([one[name] for one in found])) for name in METRICS}


def _by_strength(refinement: Refinement, strength: float) -> Refinement:
    return replace(refinement, strength=strength)


def _by_query_weight(refinement: Refinement, weight: float) -> Refinement:
    return replace(refinement, query_weight=weight)


def _by_length(refinement: Refinement, length: float) -> Refinement:
    return replace(refinement, length=length)


def _by_query_length(refinement: Refinement, length: float) -> Refinement:
    return replace(refinement, query_length=length)

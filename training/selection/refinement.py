"""Chooses the numbers of IRENE's Algorithm 1 (K, tau0, tau1 and ours) on labels treated as novel.

Which labels. If a recipe hides labels from training (`validation.labels`), the hidden labels serve
as novel ones. Otherwise the known labels are split into folds. The encoder, the classifiers and the
combiner were trained with the labels of a fold, so the texts of these labels predict better than
the texts of novel labels do, and the choice trusts texts too much (debian-seealso: strength 0.1,
against 0.35 on hidden labels).

Criterion. Maximise the worst metric's gain over text-only keys among the novel labels, subject to
no loss among all labels: an enriched key is nearer to its label's queries than a text-only key, but
also nearer to queries of other labels. The length of a key balances this. It does not change the
order of novel labels among themselves, so the greatest length without a loss is chosen. A query
posted with a label votes as an instance; its weight in the label's key is chosen with that vote.
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
POOLINGS = (0.1, 0.2)  # temperatures
RESIDUALS = (0.0, 0.5, 1.0)
THRESHOLDS = (-1.0, 0.15, 0.3, 0.45)
STRENGTHS = (0.1, 0.25, 0.5, 0.75, 1.0)
QUERY_WEIGHTS = (0.0, 0.25, 0.5, 1.0)
LENGTHS = (1.08, 1.04, 1.0, 0.96, 0.92, 0.88, 0.84, 0.8)
MEASURED_AMONG_ALL = 12  # number of best refinements that are also measured among all labels
PAPERS = Refinement(shortlist=200, text_threshold=0.15, query_threshold=0.15)  # Table 10

Vary = Callable[[Refinement, float], Refinement]  # sets one number of a refinement


@dataclass(frozen=True, kw_only=True)
class FoldMetrics:
    """`METRICS` in two settings.

    `among_novel` measures rows that have a novel label and ranks novel labels only; `among_all`
    measures all rows and ranks all labels.
    """

    among_novel: Figures
    among_all: Figures

    def __str__(self) -> str:
        """Such as "P@1 1.00, P@5 2.00, R@30 3.00 (among all 4.00, 5.00, 6.00)"."""
        novel = ", ".join(f"{name} {figure:.2f}" for name, figure in self.among_novel.items())
        every = ", ".join(f"{figure:.2f}" for figure in self.among_all.values())
        return f"{novel} (among all {every})"


@dataclass(frozen=True, kw_only=True)
class RefinementChoice:
    """The chosen refinement, its metrics and those of text-only keys.

    `text` (text-only keys) and `zero_shot` (refined keys) are measured without queries of the
    labels; `text_and_query` and `one_shot` are the same with one query for each label, which votes
    as an instance among novel labels. All are None if no held-out row has a label of a fold.
    """

    refinement: Refinement
    text: FoldMetrics | None = None
    zero_shot: FoldMetrics | None = None
    text_and_query: FoldMetrics | None = None
    one_shot: FoldMetrics | None = None

    def __str__(self) -> str:
        """One line for the log of a run."""
        if self.text is None:
            return "novel labels: no held-out row has one, so the paper's numbers are used"
        return (
            f"novel labels: text {self.text}; zero-shot {self.zero_shot};"
            f" text and a query {self.text_and_query}; one-shot {self.one_shot}"
        )


def choose_refinement(
    held_out: LabelFoldData,
    *,
    pooled: bool = False,
    residuals: Sequence[float] = RESIDUALS,
    seed: int,
) -> RefinementChoice:
    """Choose K, tau0, strength and length without queries, then tau1, query weight and length.

    With `pooled`, the labels that survive tau0 are pooled, and the pooling's temperature and
    residual, one of `residuals`, are chosen with K. The first of equally good refinements is
    chosen. Returns the paper's numbers if no held-out row has a label of a fold.
    """
    label_folds = list(folds(held_out, seed=seed))
    if not label_folds:
        return RefinementChoice(refinement=PAPERS)
    without_query = _without_query(residuals, pooled=pooled)
    text_keys = [fold.texts for fold in label_folds]
    text = _measure(label_folds, text_keys, revealed=False)
    best = _best_among_novel(
        label_folds, without_query, text, _with_strength, STRENGTHS, revealed=False
    )
    zero_shot, chosen = _first_without_loss(label_folds, best, text, _with_length, revealed=False)
    thresholds = [replace(chosen, query_threshold=threshold) for threshold in THRESHOLDS]
    text_and_query = _measure(label_folds, text_keys, revealed=True)
    best = _best_among_novel(
        label_folds, thresholds, text_and_query, _with_query_weight, QUERY_WEIGHTS, revealed=True
    )
    one_shot, chosen = _first_without_loss(
        label_folds, best, text_and_query, _with_query_length, revealed=True
    )
    return RefinementChoice(
        refinement=chosen,
        text=text,
        zero_shot=zero_shot,
        text_and_query=text_and_query,
        one_shot=one_shot,
    )


def _without_query(residuals: Sequence[float], *, pooled: bool) -> list[Refinement]:
    """Every shortlist with every threshold and, where the survivors are pooled, every pooling."""
    poolings = tuple(product(POOLINGS, residuals)) if pooled else ((0.0, 0.0),)
    return [
        replace(
            PAPERS,
            shortlist=shortlist,
            text_threshold=threshold,
            pooling=pooling,
            residual=residual,
        )
        for shortlist, threshold, (pooling, residual) in product(SHORTLISTS, THRESHOLDS, poolings)
    ]


def least_gain(figures: Figures, text: Figures) -> float:
    """The smallest relative gain of a metric over text-only keys; negative for a loss."""
    return min(figures[name] / max(text[name], 1e-9) - 1.0 for name in METRICS)


def loss_among_all(refined: FoldMetrics, text: FoldMetrics) -> float:
    """How far the mean metric among all labels falls below that of text-only keys; 0 or negative.

    It is in percentage points.
    """
    refined_mean = float(np.mean(list(refined.among_all.values())))
    text_mean = float(np.mean(list(text.among_all.values())))
    return min(0.0, refined_mean - text_mean)


def _best_among_novel(
    label_folds: Sequence[LabelFold],
    refinements: Sequence[Refinement],
    text: FoldMetrics,
    vary: Vary,
    values: Sequence[float],
    *,
    revealed: bool,
) -> list[Refinement]:
    """Refinements ordered by `least_gain` among novel labels, greatest first."""
    tried = (
        (
            least_gain(_among_novel(label_folds, keys, revealed=revealed), text.among_novel),
            refinement,
        )
        for refinement, keys in _variants(label_folds, refinements, vary, values, revealed=revealed)
    )
    ordered = sorted(tried, key=itemgetter(0), reverse=True)  # stable
    return [refinement for _, refinement in ordered[:MEASURED_AMONG_ALL]]


def _first_without_loss(
    label_folds: Sequence[LabelFold],
    refinements: Sequence[Refinement],
    text: FoldMetrics,
    vary: Vary,
    *,
    revealed: bool,
) -> tuple[FoldMetrics, Refinement]:
    """The first refinement without a loss among all labels, or the one with the least loss."""
    tried: list[tuple[FoldMetrics, Refinement]] = []
    for refinement, keys in _variants(label_folds, refinements, vary, LENGTHS, revealed=revealed):
        metrics = _measure(label_folds, keys, revealed=revealed)
        if loss_among_all(metrics, text) == 0.0:
            return metrics, refinement
        tried.append((metrics, refinement))
    return max(tried, key=lambda trial: loss_among_all(trial[0], text))


def _variants(
    label_folds: Sequence[LabelFold],
    refinements: Sequence[Refinement],
    vary: Vary,
    values: Sequence[float],
    *,
    revealed: bool,
) -> Iterator[tuple[Refinement, list[Floats]]]:
    """Each refinement with each of `values`, and the keys [f, d] of each fold.

    C(u) does not depend on `values` and is computed once for each refinement.
    """
    for refinement in refinements:
        combined = [fold.combined(refinement, revealed=revealed) for fold in label_folds]
        for value in values:
            variant = vary(refinement, value)
            keys = [
                fold.keys(fold_combined, variant, revealed=revealed)
                for fold, fold_combined in zip(label_folds, combined, strict=True)
            ]
            yield variant, keys


def _measure(
    label_folds: Sequence[LabelFold], keys: Sequence[Floats], *, revealed: bool
) -> FoldMetrics:
    """Mean metrics over the folds; `keys` has the keys [f, d] of each fold."""
    pairs = zip(label_folds, keys, strict=True)
    return FoldMetrics(
        among_novel=_among_novel(label_folds, keys, revealed=revealed),
        among_all=_mean([fold.among_all.measure(fold_keys) for fold, fold_keys in pairs]),
    )


def _among_novel(
    label_folds: Sequence[LabelFold], keys: Sequence[Floats], *, revealed: bool
) -> Figures:
    pairs = zip(label_folds, keys, strict=True)
    return _mean([fold.measure(fold_keys, revealed=revealed) for fold, fold_keys in pairs])


def _mean(of_folds: Sequence[Figures]) -> Figures:
    return {name: float(np.mean([figures[name] for figures in of_folds])) for name in METRICS}


def _with_strength(refinement: Refinement, strength: float) -> Refinement:
    return replace(refinement, strength=strength)


def _with_query_weight(refinement: Refinement, weight: float) -> Refinement:
    return replace(refinement, query_weight=weight)


def _with_length(refinement: Refinement, length: float) -> Refinement:
    return replace(refinement, length=length)


def _with_query_length(refinement: Refinement, length: float) -> Refinement:
    return replace(refinement, query_length=length)

"""Chooses the parameters of IRENE's Algorithm 1 (K, tau0, tau1, ours) on labels treated as novel.

Labels. If a recipe hides labels from training (`validation.labels`), these serve as novel labels.
Otherwise the known labels are split into folds. Encoder, classifiers and combiner were trained with
a fold's labels, so these labels' texts predict better than those of truly novel labels, and the
choice trusts texts too much (debian-seealso: strength 0.1, against 0.35 on hidden labels).

Criterion. Maximize the worst metric's relative gain over text-only keys among novel labels, without
a loss among all labels: an enriched key is nearer to its label's queries, but also to those of
other labels. A key's length balances this. It does not change the order of novel labels among
themselves, so the greatest length without a loss is chosen. A query posted with a label votes as an
instance, and its weight in the label's key is chosen with that vote present.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from operator import itemgetter
from typing import Any

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
POOLINGS = (0.1, 0.2)  # temperatures of the pooling
RESIDUALS = (0.0, 0.5, 1.0)
THRESHOLDS = (-1.0, 0.15, 0.3, 0.45)
STRENGTHS = (0.1, 0.25, 0.5, 0.75, 1.0)
QUERY_WEIGHTS = (0.0, 0.25, 0.5, 1.0)
LENGTHS = (1.08, 1.04, 1.0, 0.96, 0.92, 0.88, 0.84, 0.8)
MEASURED_AMONG_ALL = 12  # the best refinements, this many, are also measured among all labels
PAPERS = Refinement(shortlist=200, text_threshold=0.15, query_threshold=0.15)  # Table 10


@dataclass(frozen=True, kw_only=True)
class FoldMetrics:
    """`METRICS` with two sets of candidates.

    `among_novel` measures the rows with a novel label and ranks novel labels only; `among_all`
    measures all rows and ranks all labels.
    """

    among_novel: Figures
    among_all: Figures

    def __str__(self) -> str:
        """Format the metrics: "P@1 1.00, P@5 2.00, R@30 3.00 (among all 4.00, 5.00, 6.00)"."""
        novel = ", ".join(f"{name} {figure:.2f}" for name, figure in self.among_novel.items())
        every = ", ".join(f"{figure:.2f}" for figure in self.among_all.values())
        return f"{novel} (among all {every})"


@dataclass(frozen=True, kw_only=True)
class RefinementChoice:
    """The chosen refinement, its metrics and those of text-only keys.

    `text` (text-only keys) and `zero_shot` (refined keys) are measured without queries of the
    labels. `text_and_query` and `one_shot` have one query per label, which votes as an instance
    among novel labels. All are None if no held-out row has a label of a fold.
    """

    refinement: Refinement
    text: FoldMetrics | None = None
    zero_shot: FoldMetrics | None = None
    text_and_query: FoldMetrics | None = None
    one_shot: FoldMetrics | None = None

    def __str__(self) -> str:
        """Format the choice as one line for the log of a run."""
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

    With `pooled`, the labels that survive tau0 are pooled. The pooling's temperature and its
    residual, one of `residuals`, are then chosen together with K. The first of equally good choices
    wins. Returns the paper's parameters if no held-out row has a label of a fold.
    """
    label_folds = list(folds(held_out, seed=seed))
    if not label_folds:
        return RefinementChoice(refinement=PAPERS)
    refinements = _without_query(residuals, pooled=pooled)
    alone = _Search(label_folds, revealed=False)
    best = alone.best_among_novel(refinements, "strength", STRENGTHS)
    zero_shot, chosen = alone.first_without_loss(best, "length")
    refinements = [replace(chosen, query_threshold=threshold) for threshold in THRESHOLDS]
    with_query = _Search(label_folds, revealed=True)
    best = with_query.best_among_novel(refinements, "query_weight", QUERY_WEIGHTS)
    one_shot, chosen = with_query.first_without_loss(best, "query_length")
    return RefinementChoice(
        refinement=chosen,
        text=alone.text,
        zero_shot=zero_shot,
        text_and_query=with_query.text,
        one_shot=one_shot,
    )


def _without_query(residuals: Sequence[float], *, pooled: bool) -> list[Refinement]:
    """Every shortlist with every threshold and, if `pooled`, every pooling."""
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
    """How far the mean metric among all labels falls below that of text-only keys.

    It is in percentage points; 0 or negative if nothing is lost.
    """
    refined_mean = float(np.mean(list(refined.among_all.values())))
    text_mean = float(np.mean(list(text.among_all.values())))
    return min(0.0, refined_mean - text_mean)


class _Search:
    """Tries refinements on all folds; with `revealed`, each novel label has a query."""

    def __init__(self, label_folds: Sequence[LabelFold], *, revealed: bool) -> None:
        self._folds, self._revealed = label_folds, revealed
        self.text = self._measure([fold.texts for fold in label_folds])  # of text-only keys

    def best_among_novel(
        self, refinements: Sequence[Refinement], field: str, values: Sequence[float]
    ) -> list[Refinement]:
        """Return refinements ordered by `least_gain` among novel labels, greatest first."""
        tried = (
            (least_gain(self._among_novel(keys), self.text.among_novel), refinement)
            for refinement, keys in self._variants(refinements, field, values)
        )
        ordered = sorted(tried, key=itemgetter(0), reverse=True)  # a stable sort
        return [refinement for _, refinement in ordered[:MEASURED_AMONG_ALL]]

    def first_without_loss(
        self, refinements: Sequence[Refinement], field: str
    ) -> tuple[FoldMetrics, Refinement]:
        """Return the first refinement without a loss among all labels, or the one that loses least.

        Each refinement is tried with all `LENGTHS` in `field`.
        """
        tried: list[tuple[FoldMetrics, Refinement]] = []
        for refinement, keys in self._variants(refinements, field, LENGTHS):
            metrics = self._measure(keys)
            if loss_among_all(metrics, self.text) == 0.0:
                return metrics, refinement
            tried.append((metrics, refinement))
        return max(tried, key=lambda trial: loss_among_all(trial[0], self.text))

    def _variants(
        self, refinements: Sequence[Refinement], field: str, values: Sequence[float]
    ) -> Iterator[tuple[Refinement, list[Floats]]]:
        """Each refinement with each of `values` in `field`, and the keys [f, d] of each fold.

        C(u) does not depend on `values`, so it is computed once per refinement.
        """
        for refinement in refinements:
            combined = [fold.combined(refinement, revealed=self._revealed) for fold in self._folds]
            for value in values:
                changed: dict[str, Any] = {field: value}
                variant = replace(refinement, **changed)
                pairs = zip(self._folds, combined, strict=True)
                yield variant, [fold.keys(c, variant, revealed=self._revealed) for fold, c in pairs]

    def _measure(self, keys: Sequence[Floats]) -> FoldMetrics:
        """Return the mean metrics over the folds; `keys` holds the keys [f, d] of each fold."""
        pairs = zip(self._folds, keys, strict=True)
        return FoldMetrics(
            among_novel=self._among_novel(keys),
            among_all=_mean([fold.among_all.measure(fold_keys) for fold, fold_keys in pairs]),
        )

    def _among_novel(self, keys: Sequence[Floats]) -> Figures:
        pairs = zip(self._folds, keys, strict=True)
        return _mean([fold.measure(each, revealed=self._revealed) for fold, each in pairs])


def _mean(of_folds: Sequence[Figures]) -> Figures:
    return {name: float(np.mean([figures[name] for figures in of_folds])) for name in METRICS}

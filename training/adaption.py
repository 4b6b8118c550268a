"""A learned lambda against the best single one, on one encoder and data set."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from service.core.adaptive import FEATURES, AdaptiveMemorization
from training.adaptive import (
    GRID,
    Examples,
    best_constant,
    block_scores,
    choose_fit,
    examples,
    fit,
    memorizations,
    query_features,
    sigmoid,
    utility,
)
from training.checkpoints.choices import LearnedMemorization
from training.evaluation.prediction import Ranked, rank
from training.evaluation.results import PER_ROW
from training.experiments.study import Side, Study
from training.report.significance import paired_p

SEED = 5  # of the folds
CERTAIN = 0.01  # a p-value; .05 would be too kind to the best of several fits


@dataclass(frozen=True, kw_only=True)
class Adaption:
    """What was learned and what it brings; all metrics in percent.

    `held_out` is the mean of P@1, P@5, R@100 and PSP@5 on held-out rows that were not fitted on, by
    the chosen fit and by the best single lambda, and `held_out_p` the difference's. `constant` is
    the best single lambda of all held-out rows, `learned` is fitted to all of them in the chosen
    way; both are measured on the test rows.
    """

    learned: LearnedMemorization
    objective: str
    penalty: float
    rows: int
    held_out: dict[str, float]
    held_out_p: float | None
    constant: float
    test_constant: dict[str, float]
    test_adaptive: dict[str, float]
    p_values: dict[str, float | None]

    @property
    def wins(self) -> bool:
        """Whether it was better on rows that it was not fitted on, beyond chance."""
        better = self.held_out["adaptive"] > self.held_out["constant"]
        return better and self.held_out_p is not None and self.held_out_p < CERTAIN

    @property
    def verdict(self) -> str:
        """One line for the reader."""
        own, one = self.held_out["adaptive"], self.held_out["constant"]
        chance = "" if self.held_out_p is None else f", p {self.held_out_p:.2g}"
        return (
            f"on held-out rows it was not fitted on: {own:.2f}, a single lambda {one:.2f}{chance};"
            f" it {'wins' if self.wins else 'does not win'} ({self.objective}, penalty"
            f" {self.penalty:g})"
        )


def learn(study: Study) -> Adaption:
    """Choose a fit on folds of the held-out rows, fit it to all, and measure on the test rows."""
    side = study.held_out()
    data = examples(side)
    chosen = choose_fit(data, rng=np.random.default_rng(SEED))
    learned = fit(data, chosen.objective, penalty=chosen.penalty)
    constant = best_of_all(data, side)
    test = study.test()
    keys, retrieved = test.memory(test.instances, test.labels_of)
    by_one = test.ranked(keys, retrieved, memorization=constant)
    features = query_features(keys, retrieved.both, tau=study.choices.tau)
    blocks = block_scores(keys, retrieved.both, tau=study.choices.tau)
    by_own = rank(blocks.mixed(memorizations(learned, features)), keys, test.top_k)
    return Adaption(
        learned=as_learned(learned, study),
        objective=chosen.objective,
        penalty=chosen.penalty,
        rows=len(data.features),
        held_out={
            "adaptive": 100.0 * float(chosen.own.mean()),
            "constant": 100.0 * float(chosen.constant.mean()),
        },
        held_out_p=chosen.p,
        constant=constant,
        test_constant=test.measure(by_one),
        test_adaptive=test.measure(by_own),
        p_values=paired(test, by_own, by_one),
    )


def best_of_all(data: Examples, side: Side) -> float:
    """The best single lambda, 0 and 1 among them, where only one block is searched (Eq. 8)."""
    keys, retrieved = side.memory(side.instances, side.labels_of)
    best = best_constant(data)
    found = {best: float(data.utilities[:, np.abs(sigmoid(GRID) - best).argmin()].mean())}
    for end in (0.0, 1.0):
        ranked = side.ranked(keys, retrieved, memorization=end)
        found[end] = float(utility(ranked, side).mean())
    return max(found, key=lambda memorization: found[memorization])


def as_learned(learned: AdaptiveMemorization, study: Study) -> LearnedMemorization:
    """With names, as it is written."""
    return LearnedMemorization(
        weights=dict(zip(FEATURES, learned.weights.tolist(), strict=True)),
        bias=learned.bias,
        tau=study.choices.tau,
        depth=study.choices.depth,
    )


def paired(side: Side, left: Ranked, right: Ranked) -> dict[str, float | None]:
    """p-values by metric."""
    rows = [side.row_metrics(ranked) for ranked in (left, right)]
    return {
        metric: paired_p(rows[0][:, column], rows[1][:, column])
        for column, metric in enumerate(PER_ROW)
    }

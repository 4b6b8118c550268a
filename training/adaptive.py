"""Learning a lambda of each query's own (see `service.core.adaptive`) on held-out rows.

Two ways to fit w and c are tried; rows that they were not fitted on say which, and whether it
beats the best single lambda at all. The likelihood of the positives, the usual objective, was a
third and is gone: the mass that they get of all scores says little about ranks, and it lost to
every single lambda near the middle.

Shapes: n queries, F features, G values of lambda, L labels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize
from scipy.sparse import csr_matrix, diags

from service.core.adaptive import FEATURES, AdaptiveMemorization, retrieval_features
from service.core.types import Doubles, Floats, Rows
from training.batches.batch import Pairs
from training.evaluation.metrics import best_gains, judge, scored_hits
from training.evaluation.prediction import Keys, Ranked, distribution, rank
from training.experiments.study import Side
from training.report.significance import paired_p

GRID = np.linspace(-6.0, 6.0, 25)  # logits of lambda at which rankings are measured
WIDTH = 0.5  # of a logit, by which expected utility is smoothed
PENALTIES = (1e-4, 1e-3, 1e-2, 1e-1)
FOLDS = 5

Objective = Callable[[Doubles], tuple[float, Doubles]]  # logits [n] -> gain, its gradient [n]


@dataclass(frozen=True, kw_only=True, eq=False)
class Blocks:
    """The two addends of Eq. 7 without lambda: scores of the instances and of the labels."""

    instances: csr_matrix  # [n, L]
    labels: csr_matrix  # [n, L]

    def mixed(self, memorization: Doubles) -> csr_matrix:
        """p = lambda (w Y) + (1 - lambda) (w I) with each query's lambda [n]."""
        return csr_matrix(
            diags(memorization) @ self.instances + diags(1.0 - memorization) @ self.labels
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Examples:
    """What the fits look at; queries without a positive that counts are left out."""

    features: Doubles  # [n, F]
    utilities: Doubles  # [n, G], what a query adds to the mean of P@1, P@5, R@100 and PSP@5

    def part(self, rows: Rows) -> Examples:
        """Some of the queries."""
        return Examples(features=self.features[rows], utilities=self.utilities[rows])


@dataclass(frozen=True, kw_only=True, eq=False)
class Trial:
    """A way to fit, and what each row gets when it was not fitted on, in [0, 1]."""

    objective: str
    penalty: float
    own: Doubles  # [n], at its own lambda
    constant: Doubles  # [n], at the best single lambda of the same rows

    @property
    def p(self) -> float | None:
        """Of a paired t-test."""
        return paired_p(self.own, self.constant)


def query_features(keys: Keys, retrieved: tuple[Floats, Rows], *, tau: float) -> Doubles:
    """f(q) of every query, [n, F], by the function that serves."""
    weights = distribution(keys, retrieved, tau=tau)
    y = csr_matrix(keys.labels_of)
    features = np.empty((len(retrieved[1]), len(FEATURES)))
    for line, (similarities, rows) in enumerate(zip(*retrieved, strict=True)):
        similarities, rows = similarities[rows >= 0], rows[rows >= 0]
        labels, votes_per_key = value_rows(y, rows)
        features[line] = retrieval_features(
            similarities=similarities,
            weights=np.asarray(weights[line, rows].todense(), np.float64).ravel(),
            is_instance=rows < keys.instances,
            labels=labels,
            votes_per_key=votes_per_key,
        )
    return features


def value_rows(y: csr_matrix, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
    """The votes of keys [b] one after the other, and how many each has."""
    instances = y.shape[0]
    votes = [
        y.indices[y.indptr[row] : y.indptr[row + 1]] if row < instances else [row - instances]
        for row in rows.tolist()
    ]
    counts = np.array([len(found) for found in votes], np.int64)
    return np.concatenate([*votes, []]).astype(np.int32), counts


def block_scores(keys: Keys, retrieved: tuple[Floats, Rows], *, tau: float) -> Blocks:
    """Both blocks' scores of every query."""
    weights = distribution(keys, retrieved, tau=tau)
    return Blocks(
        instances=csr_matrix(weights @ keys.values(1.0)),
        labels=csr_matrix(weights @ keys.values(0.0)),
    )


def utility(ranked: Ranked, side: Side) -> Doubles:
    """What each labelled query adds to the mean of P@1, P@5, R@100 and PSP@5, [n]."""
    judged = judge(ranked, side.positives, filtered=side.filtered)
    inverse = side.inverse_propensities
    gains = scored_hits(judged, inverse_propensities=inverse, k=5).sum(axis=1)
    best = best_gains(judged.positives, inverse_propensities=inverse, k=5).sum(axis=1)
    hits = judged.hits
    parts = [
        hits[:, 0],
        hits[:, :5].sum(axis=1) / 5.0,
        hits[:, :100].sum(axis=1) / judged.sizes,
        gains / best.mean(),
    ]
    return np.asarray(np.mean(parts, axis=0), np.float64)


def examples(side: Side) -> Examples:
    """Retrieve and rank a side's queries at every lambda of the grid."""
    keys, retrieved = side.memory(side.instances, side.labels_of)
    tau = side.choices.tau
    blocks = block_scores(keys, retrieved.both, tau=tau)
    measured = [
        utility(rank(blocks.mixed(np.full(len(side.queries), value)), keys, side.top_k), side)
        for value in sigmoid(GRID)
    ]
    # As `judge` leaves them out.
    pairs = Pairs(labels_of=side.positives, filtered=side.filtered)
    features = query_features(keys, retrieved.both, tau=tau)
    return Examples(features=features[pairs.trainable()], utilities=np.stack(measured, axis=1))


def best_lambda(data: Examples) -> Objective:
    """Cross-entropy to each query's best lambda, weighted by what choosing it matters."""
    top = data.utilities.max(axis=1)
    best = data.utilities >= top[:, None] - 1e-12
    target = (best * sigmoid(GRID)).sum(axis=1) / best.sum(axis=1)  # [n]
    weight = top - data.utilities.min(axis=1)
    weight = weight / max(weight.sum(), 1e-12)

    def gain(logits: Doubles) -> tuple[float, Doubles]:
        fits = target * -np.logaddexp(0.0, -logits) + (1.0 - target) * -np.logaddexp(0.0, logits)
        return float((weight * fits).sum()), weight * (target - sigmoid(logits))

    return gain


def expected_utility(data: Examples) -> Objective:
    """The metrics themselves, averaged over the grid's lambdas with a Gaussian weight of each.

    Straight lines between the grid's points would do as well, but their corners stop the ascent.
    """

    def gain(logits: Doubles) -> tuple[float, Doubles]:
        inside = np.clip(logits, GRID[0] - WIDTH, GRID[-1] + WIDTH)
        distance = (inside[:, None] - GRID) / WIDTH  # [n, G]
        weight = np.exp(-0.5 * distance**2)
        weight /= weight.sum(axis=1, keepdims=True)
        value = (weight * data.utilities).sum(axis=1)
        # d value / d logit is minus the covariance of utility and distance, over the width.
        mean = (weight * distance).sum(axis=1)
        slope = value * mean - (weight * distance * data.utilities).sum(axis=1)
        slope = np.where(inside == logits, slope / WIDTH, 0.0)
        return float(value.mean()), slope / len(logits)

    return gain


OBJECTIVES: Mapping[str, Callable[[Examples], Objective]] = {
    "best lambda": best_lambda,
    "expected utility": expected_utility,
}


def fit(data: Examples, objective: str, *, penalty: float) -> AdaptiveMemorization:
    """Maximise an objective minus `penalty` times |w|^2 of standardised features.

    Starts at the best single lambda, w = 0.
    """
    mean, deviation = data.features.mean(axis=0), data.features.std(axis=0)
    deviation = np.where(deviation > 1e-9, deviation, np.inf)  # a constant feature has no weight
    standard = (data.features - mean) / deviation  # [n, F]
    gain = OBJECTIVES[objective](data)

    def cost(parameters: Doubles) -> tuple[float, Doubles]:
        weights, bias = parameters[:-1], parameters[-1]
        value, slope = gain(standard @ weights + bias)
        down = np.concatenate([slope @ standard - 2.0 * penalty * weights, [slope.sum()]])
        return -value + penalty * float(weights @ weights), -down

    start = np.zeros(standard.shape[1] + 1)
    start[-1] = GRID[data.utilities.mean(axis=0).argmax()]
    found = minimize(cost, start, jac=True, method="L-BFGS-B").x
    weights = found[:-1] / deviation
    return AdaptiveMemorization(weights=weights, bias=float(found[-1] - weights @ mean))


def memorizations(learned: AdaptiveMemorization, features: Doubles) -> Doubles:
    """lambda of each query, [n]."""
    return np.array([learned.of(one) for one in features])


def utilities_at(data: Examples, memorization: Doubles) -> Doubles:
    """What each query adds at a lambda of its own [n], interpolated between the grid's."""
    logits = np.log(memorization / (1.0 - memorization))
    each = [np.interp(one, GRID, line) for one, line in zip(logits, data.utilities, strict=True)]
    return np.array(each)


def best_constant(data: Examples) -> float:
    """The single lambda of the grid with the highest mean."""
    return float(sigmoid(GRID[data.utilities.mean(axis=0).argmax()]))


def choose_fit(data: Examples, *, rng: np.random.Generator) -> Trial:
    """The way to fit that does best on rows which it was not fitted on.

    Every row is judged once, by a fit to the other folds: one split in halves leaves so few rows
    that chance chooses.
    """
    folds = np.array_split(rng.permutation(len(data.features)), FOLDS)
    ways = [(objective, penalty) for objective in OBJECTIVES for penalty in PENALTIES]
    own = np.zeros((len(ways), len(data.features)))
    constant = np.zeros(len(data.features))
    for fold in folds:
        others = data.part(np.setdiff1d(np.arange(len(data.features)), fold))
        judged = data.part(fold)
        constant[fold] = utilities_at(judged, np.full(len(fold), best_constant(others)))
        for way, (objective, penalty) in enumerate(ways):
            learned = fit(others, objective, penalty=penalty)
            own[way, fold] = utilities_at(judged, memorizations(learned, judged.features))
    best = int(own.mean(axis=1).argmax())
    objective, penalty = ways[best]
    return Trial(objective=objective, penalty=penalty, own=own[best], constant=constant)


def sigmoid(logits: Doubles) -> Doubles:
    """1 / (1 + exp(-x))."""
    return np.asarray(1.0 / (1.0 + np.exp(-logits)))

"""What a sum of trees says of a candidate's relevance (Platt scaling; Platt, 1999).

Shapes: m candidates.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from sklearn.linear_model import LogisticRegression

from service.core.prediction.reranking.reranker import probabilities
from service.core.types import Bools, Doubles

_HARDLY_ANY = 1e6  # the inverse of the regularisation's strength: two numbers do not overfit
_BINS = 10


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """The slope and the intercept with which a sum of trees becomes a probability."""

    slope: float
    intercept: float

    def probabilities(self, sums: Doubles) -> Doubles:
        """What sums of trees [m] say, [m]."""
        return probabilities(sums, slope=self.slope, intercept=self.intercept)


UNCALIBRATED = Calibration(slope=1.0, intercept=0.0)


def calibrate(sums: Doubles, positive: Bools) -> Calibration:
    """Fit to candidates [m] that the trees did not learn from.

    Where they are all alike, or greater sums are not more often relevant, nothing can be fitted.
    """
    if len(np.unique(positive)) < 2:
        return UNCALIBRATED
    fitted = LogisticRegression(C=_HARDLY_ANY).fit(sums[:, None], positive)
    slope, intercept = float(fitted.coef_[0, 0]), float(fitted.intercept_[0])
    return Calibration(slope=slope, intercept=intercept) if slope > 0.0 else UNCALIBRATED


def calibration_error(probabilities: Doubles, positive: Bools) -> float:
    """The expected calibration error (Guo et al., 2017) over ten bins of equal width."""
    if not len(probabilities):
        return 0.0
    bins = np.minimum((probabilities * _BINS).astype(np.int64), _BINS - 1)
    said = np.bincount(bins, weights=probabilities, minlength=_BINS)
    true = np.bincount(bins, weights=positive, minlength=_BINS)
    return float(np.abs(said - true).sum() / len(probabilities))

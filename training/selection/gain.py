"""Whether one way is better than another on the same held-out rows.

Shapes: n held-out rows with a label that counts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from numpy import float64
from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class Gain:
    """A difference of two scores in points, and its standard error over the held-out rows."""

    points: float
    error: float

    @property
    def counts(self) -> bool:
        """Whether the difference is positive and larger than its standard error."""
        return self.points > self.error


def gain_of_rows(points: float, rows: NDArray[float64], over: NDArray[float64]) -> Gain:
    """The gain of `points` in the mean of all metrics, with its error by those of rows, [n, 3].

    PSP@5 is not a mean over rows: the error is that of the other three metrics' mean.
    """
    differences = 100.0 * (rows - over).mean(axis=1)  # [n]
    error = float(differences.std(ddof=1)) / math.sqrt(len(differences))
    return Gain(points=points, error=error)

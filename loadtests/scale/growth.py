"""Laws of growth, fitted by least squares over n numbers of keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, kw_only=True)
class Law:
    """value = factor * keys ** exponent, and value = start + tenfold * log10(keys)."""

    exponent: float
    factor: float
    tenfold: float  # what is added with each tenfold number of keys
    start: float

    def __str__(self) -> str:
        """The text of a table cell."""
        return f"keys^{self.exponent:.2f}; {self.tenfold:+.3g} with each tenfold"


def fitted(keys: Sequence[int], values: Sequence[float]) -> Law:
    """Fit both laws; raises `ValueError` for fewer than two numbers of keys."""
    if len(set(keys)) < 2:
        raise ValueError("a law of growth needs at least two numbers of keys")
    logarithms = np.log10(np.asarray(keys, np.float64))
    exponent, log_factor = np.polyfit(logarithms, np.log10(values), 1)
    tenfold, start = np.polyfit(logarithms, values, 1)
    return Law(
        exponent=float(exponent),
        factor=float(10**log_factor),
        tenfold=float(tenfold),
        start=float(start),
    )

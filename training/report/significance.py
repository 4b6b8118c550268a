"""Paired t-tests over the same test rows (RAE-XMC, Appendix B.3 and Table 9).

n is the number of test rows with an unfiltered label.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student

from training.evaluation.results import PER_ROW
from training.report.runs import Run
from training.report.tables import way_of


@dataclass(frozen=True, kw_only=True)
class PairedTest:
    """`difference` of the means in percentage points; `p` is None if nothing varies."""

    metric: str
    difference: float
    p: float | None


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The best run against another one (`way` is its prediction method), one test per metric."""

    other: str
    way: str
    tests: tuple[PairedTest, ...]


def paired_p(left: NDArray[np.float64], right: NDArray[np.float64]) -> float | None:
    """Return the two-sided p-value of Student's paired t-test over [n] and [n].

    t = mean(d) / (sd(d) / sqrt(n)) with n - 1 degrees of freedom. None if there is no
    test: fewer than two rows, or equal differences in all rows, as identical rankings have.
    """
    differences = left - right
    n = len(differences)
    if n < 2 or np.ptp(differences) == 0.0:
        return None
    t = differences.mean() / (differences.std(ddof=1) / math.sqrt(n))
    return float(2.0 * student.sf(abs(t), n - 1))


def p_value(p: float | None) -> str:
    """A p-value as Table 9 shows it; "none" if nothing varies."""
    if p is None:
        return "none"
    if p < 1e-300:  # a double cannot tell it from 0
        return "≈ 0"
    if p < 1e-4:
        return f"{p:.1e}"
    return f"{p:.2f}" if p >= 0.01 else f"{p:.4f}"


def best(runs: Sequence[Run]) -> Run:
    """The run with the highest P@1 at its chosen settings; the first of equal ones."""
    return max(runs, key=lambda run: run.chosen.metrics["P@1"])


def comparisons(runs: Sequence[Run]) -> list[Comparison]:
    """Test the best run against each other run; `read_runs` checked that they have equal rows."""
    leader = best(runs)
    return [_compare(leader, run) for run in runs if run is not leader]


def _compare(leader: Run, other: Run) -> Comparison:
    columns = zip(PER_ROW, leader.rows.T, other.rows.T, strict=True)
    return Comparison(
        other=other.name,
        way=way_of(other, other.chosen),
        tests=tuple(
            PairedTest(
                metric=metric,
                difference=float(100.0 * (left.mean() - right.mean())),
                p=paired_p(left, right),
            )
            for metric, left, right in columns
        ),
    )

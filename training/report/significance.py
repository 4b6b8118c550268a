"""Paired t-tests over the same test rows (RAE-XMC, Appendix B.3 and Table 9).

n are the test rows with a label that counts.
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
    """`difference` of the means in percentage points; no p-value where nothing varies."""

    metric: str
    difference: float
    p: float | None


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The best run against another and how that one predicts, one test a metric."""

    other: str
    way: str
    tests: tuple[PairedTest, ...]


def paired_p(left: NDArray[np.float64], right: NDArray[np.float64]) -> float | None:
    """Return the two-sided p-value of Student's paired t-test over [n] and [n].

    t = mean(d) / (sd(d) / sqrt(n)) with n - 1 degrees of freedom. None where the test says nothing:
    fewer than two rows, or differences that are all the same, as those of identical rankings are.
    """
    differences = left - right
    n = len(differences)
    if n < 2 or np.ptp(differences) == 0.0:
        return None
    t = differences.mean() / (differences.std(ddof=1) / math.sqrt(n))
    return float(2.0 * student.sf(abs(t), n - 1))


def best(runs: Sequence[Run]) -> Run:
    """The run with the highest P@1 at its chosen prediction; of equal ones the first."""
    return max(runs, key=lambda run: run.chosen.metrics["P@1"])


def comparisons(runs: Sequence[Run]) -> list[Comparison]:
    """Test the best run against each other one; their rows are the same, see `read_runs`."""
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

"""Paired t-tests over the same test rows (RAE-XMC, Appendix B.3 and Table 9).

n is the number of test rows with an unfiltered label.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student

from training.evaluation.results import PER_ROW
from training.lab.report.runs import Run
from training.lab.report.tables import Table, way_of


def paired_p(left: NDArray[np.float64], right: NDArray[np.float64]) -> float | None:
    """Return the two-sided p-value of Student's paired t-test over [n] and [n].

    t = mean(d) / (sd(d) / sqrt(n)) with n - 1 degrees of freedom. None if there is no test: with
    fewer than two rows, or if all differences are equal, as for identical rankings.
    """
    differences = left - right
    n = len(differences)
    if n < 2 or np.ptp(differences) == 0.0:
        return None
    t = differences.mean() / (differences.std(ddof=1) / math.sqrt(n))
    return float(2.0 * student.sf(abs(t), n - 1))


def p_value(p: float | None) -> str:
    """Format a p-value as in Table 9; "none" if nothing varies."""
    if p is None:
        return "none"
    if p < 1e-300:  # a double cannot tell it from 0
        return "≈ 0"
    if p < 1e-4:
        return f"{p:.1e}"
    return f"{p:.2f}" if p >= 0.01 else f"{p:.4f}"


def comparisons(runs: Sequence[Run]) -> Table:
    """Test the best run by P@1 against each other run; `read_runs` checked that rows are equal."""
    leader, rows = max(runs, key=lambda run: run.chosen.metrics["P@1"]), []
    for other in runs:
        if other is not leader:
            cells = []
            for left, right in zip(leader.rows.T, other.rows.T, strict=True):
                points = 100.0 * (left.mean() - right.mean())
                cells += [f"{points:+.2f}", p_value(paired_p(left, right))]
            rows.append([other.name, way_of(other, other.chosen), *cells])
    tests = [f"{metric}: {what}" for metric in PER_ROW for what in ("points", "p")]
    return Table(headings=(f"{leader.name} against", "prediction", *tests), rows=rows, texts=2)

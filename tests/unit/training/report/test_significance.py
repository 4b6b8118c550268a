"""Student's paired t-test by hand, then against scipy."""

import math
from typing import Any

import numpy as np
import pytest
from scipy.stats import ttest_rel

from training.report.significance import best, comparisons, paired_p


def test_by_hand() -> None:
    # d = (1, 0, 0, 1): mean 1/2, sd sqrt(1/3), so t = sqrt(3). With 3 degrees of freedom
    # F(sqrt(3)) = 1/2 + (atan(1) + 1/2) / pi, and p = 2 (1 - F) = 1/2 - 1/pi.
    left, right = np.array([1.0, 0.0, 1.0, 1.0]), np.array([0.0, 0.0, 1.0, 0.0])
    assert paired_p(left, right) == pytest.approx(0.5 - 1 / math.pi)
    assert paired_p(right, left) == pytest.approx(0.5 - 1 / math.pi)


@pytest.mark.parametrize("shift", [0.0, 0.1, 1.0])
def test_as_scipy(shift: float) -> None:
    generator = np.random.default_rng(0)
    left, right = generator.random(200) + shift, generator.random(200)
    assert paired_p(left, right) == pytest.approx(ttest_rel(left, right).pvalue, rel=1e-9)


@pytest.mark.parametrize(
    ("left", "right"),
    [([0.2, 0.7], [0.2, 0.7]), ([1.0, 1.0], [0.0, 0.0]), ([1.0], [0.0]), ([], [])],
    ids=["identical", "a constant apart", "one row", "no row"],
)
def test_no_p_value_where_nothing_varies(left: list[float], right: list[float]) -> None:
    assert paired_p(np.array(left), np.array(right)) is None


def test_the_best_by_p1_against_each_other(run: Any, peer: Any) -> None:
    generator = np.random.default_rng(1)
    ahead = run("ahead", rows=generator.random((4, 3)))
    runs = [peer, ahead]
    assert best(runs) is ahead
    (comparison,) = comparisons(runs)
    assert (comparison.other, comparison.way) == ("bm25", "BM25")
    assert [test.metric for test in comparison.tests] == ["P@1", "P@5", "R@100"]
    for column, test in enumerate(comparison.tests):
        left, right = ahead.rows[:, column], peer.rows[:, column]
        assert test.p == pytest.approx(ttest_rel(left, right).pvalue)
        assert test.difference == pytest.approx(100 * (left - right).mean())


def test_one_run_is_compared_with_nobody(run: Any) -> None:
    assert comparisons([run()]) == []

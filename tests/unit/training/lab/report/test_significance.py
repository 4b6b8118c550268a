"""Student's paired t-test, checked with scipy."""

from typing import Any

import numpy as np
import pytest
from scipy.stats import ttest_rel

from training.lab.report.significance import comparisons, p_value, paired_p


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


@pytest.mark.parametrize(
    ("p", "shown"),
    [
        (None, "none"),
        (0.0, "≈ 0"),
        (0.514, "0.51"),
        (0.01, "0.01"),
        (0.0045, "0.0045"),
        (2.53e-42, "2.5e-42"),
    ],
)
def test_p_values(p: float | None, shown: str) -> None:
    assert p_value(p) == shown


def test_the_best_by_p1_against_each_other(run: Any, peer: Any) -> None:
    ahead = run("ahead", rows=np.random.default_rng(1).random((4, 3)))
    table = comparisons([peer, ahead])
    assert table.headings[:4] == ("ahead against", "prediction", "P@1: points", "P@1: p")
    [[other, way, *cells]] = table.rows
    assert (other, way) == ("bm25", "BM25")
    for column in range(3):
        left, right = ahead.rows[:, column], peer.rows[:, column]
        points, p = cells[2 * column : 2 * column + 2]
        assert points == f"{100 * (left - right).mean():+.2f}"
        assert p == p_value(ttest_rel(left, right).pvalue)
    assert comparisons([ahead]).rows == []

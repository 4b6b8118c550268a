"""Sums of trees become probabilities."""

import numpy as np
import pytest

from training.reranking.calibration import UNCALIBRATED, calibrate, calibration_error


def test_the_slope_and_the_intercept_of_made_up_relevance() -> None:
    rng = np.random.default_rng(0)
    sums = rng.normal(size=50_000)
    truth = 1.0 / (1.0 + np.exp(-(2.0 * sums - 1.0)))
    positive = rng.random(50_000) < truth
    found = calibrate(sums, positive)
    assert (found.slope, found.intercept) == pytest.approx((2.0, -1.0), abs=0.05)
    assert calibration_error(found.probabilities(sums), positive) < 0.01
    assert calibration_error(UNCALIBRATED.probabilities(sums), positive) > 0.1


def test_what_cannot_be_fitted_stays_as_it_is() -> None:
    sums = np.linspace(-1.0, 1.0, 10)
    assert calibrate(sums, np.zeros(10, bool)) == UNCALIBRATED
    assert calibrate(sums, sums < 0.0) == UNCALIBRATED  # greater sums are less often relevant


def test_the_error_is_that_of_each_bin() -> None:
    # Of two at 0.25, one is relevant; of two at 1, both are.
    error = calibration_error(np.array([0.25, 0.25, 1.0, 1.0]), np.array([True, False, True, True]))
    assert error == pytest.approx((2 * 0.25) / 4)
    assert calibration_error(np.zeros(0), np.zeros(0, bool)) == 0.0

"""Reliability, against figures computed by hand."""

import numpy as np
import pytest

from service.core.prediction.reliability import (
    answered_at,
    bins_of,
    calibration_error,
    keeping,
    reliability,
)

SURE = np.array([0.95, 0.95, 0.55, 0.55, 0.05])
RIGHT = np.array([True, True, True, False, False])


def test_the_calibration_error_is_the_weighted_gap() -> None:
    # gaps: 0.05 over two keywords, 0.05 over two, and 0.05 over one
    assert 100 * calibration_error(SURE, RIGHT) == pytest.approx(5.0)
    assert calibration_error(np.ones(2), np.ones(2, bool)) == 0.0
    assert calibration_error(np.zeros(0), np.zeros(0, bool)) == 0.0


def test_bins_are_tenths() -> None:
    assert [(one.low, one.keywords, one.relevant) for one in bins_of(SURE, RIGHT)] == [
        (0.0, 1, 0.0),
        (0.5, 2, 0.5),
        (0.9, 2, 1.0),
    ]
    assert [one.low for one in bins_of(np.ones(1), np.ones(1, bool))] == [0.9]


def test_equal_confidences_are_answered_together() -> None:
    assert answered_at(SURE, RIGHT, 1.0) == 2  # one of the next two is wrong
    assert answered_at(SURE, RIGHT, 0.75) == 4
    assert answered_at(SURE, RIGHT, 0.6) == 5
    assert answered_at(SURE[::-1], RIGHT[::-1], 1.0) == 2
    assert answered_at(np.zeros(0), np.zeros(0, bool), 0.5) == 0


def test_a_threshold_keeps_a_share() -> None:
    confidences = np.arange(1, 101) / 100
    threshold = keeping(confidences, 0.95)
    assert threshold == 0.06
    assert (confidences >= threshold).sum() == 95
    assert keeping(np.zeros(0), 0.95) == 0.0


def test_queries_without_keywords_count_as_unanswered() -> None:
    found = reliability(
        [np.array([0.95, 0.05]), np.zeros(0)], [np.array([True, False]), np.zeros(0, bool)]
    )
    assert (found.queries, found.answered) == (2, {80: 50.0, 90: 50.0, 95: 50.0})
    assert (found.error, found.first_error) == (pytest.approx(5.0), pytest.approx(5.0))
    assert found.threshold == 0.95
    assert reliability([], []).answered == {}

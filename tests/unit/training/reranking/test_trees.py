"""LightGBM's trees as an ONNX graph reach the same leaves and, up to rounding, the same sums."""

from pathlib import Path

import lightgbm
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.core.prediction.reliability import calibration_error
from service.core.prediction.reranking.reranker import OnnxTrees
from training.reranking.trees import (
    UNCALIBRATED,
    as_onnx,
    calibrate,
    learn_trees,
    rounded_down,
)


def learned(rows: int = 2_000, trees: int = 30) -> tuple[lightgbm.Booster, np.ndarray]:
    """Return trees and their features, with many equal values between which thresholds lie."""
    rng = np.random.default_rng(0)
    features = rng.integers(0, 50, (rows, 3)).astype(np.float32) / np.float32(7)
    positive = features[:, 0] * features[:, 1] + features[:, 2] > 20
    found = learn_trees(
        features, positive, [20] * (rows // 20), names=["a", "b", "c"], trees=trees, seed=0
    )
    return found.booster, features


def sums(booster: lightgbm.Booster, features: np.ndarray, folder: Path, trees: int) -> np.ndarray:
    (folder / "trees.onnx").write_bytes(as_onnx(booster, trees=trees).SerializeToString())
    return OnnxTrees(folder / "trees.onnx", features=3).scores(features)


@pytest.mark.parametrize("trees", [1, 7, 30])
def test_sums_are_lightgbms(tmp_path: Path, trees: int) -> None:
    booster, features = learned()
    expected = booster.predict(features, num_iteration=trees)
    assert sums(booster, features, tmp_path, trees) == pytest.approx(expected, abs=1e-5)


def test_values_beside_a_threshold_fall_to_the_same_side(tmp_path: Path) -> None:
    booster, _ = learned()
    nodes = booster.trees_to_dataframe()
    splits = nodes[nodes.threshold.notna()]
    near = splits.threshold.to_numpy().astype(np.float32)
    values = np.concatenate([near, np.nextafter(near, np.float32(99)), np.nextafter(near, -1)])
    features = np.stack([values] * 3, axis=1).astype(np.float32)
    expected = booster.predict(features.astype(np.float64))
    assert sums(booster, features, tmp_path, 30) == pytest.approx(expected, abs=1e-5)


def test_a_tree_that_is_one_leaf(tmp_path: Path) -> None:
    features = np.zeros((40, 3), np.float32)
    found = learn_trees(
        features, np.arange(40) % 2 == 0, [20, 20], names=["a", "b", "c"], trees=2, seed=0
    )
    assert sums(found.booster, features, tmp_path, 2).tolist() == [0.0] * 40


@given(st.floats(-1e30, 1e30))
def test_rounding_down_says_the_same_of_every_number_of_32_bits(threshold: float) -> None:
    found = rounded_down(threshold)
    assert found == np.float32(found) and found <= threshold
    assert float(np.nextafter(np.float32(found), np.float32(np.inf))) > threshold


def test_trees_learn_what_tells_right_from_wrong() -> None:
    rng = np.random.default_rng(0)
    features = rng.random((4_000, 2), dtype=np.float32)
    positive = features[:, 1] > 0.9
    learned = learn_trees(
        features, positive, [20] * 200, names=["noise, so to say", "signal"], trees=20, seed=0
    )
    scores = learned.scores(features, trees=20)
    assert scores[positive].min() > np.median(scores[~positive])
    assert next(iter(learned.gains())) == "signal"
    assert learned.booster.num_trees() == 20


def test_the_slope_and_the_intercept_of_made_up_relevance() -> None:
    rng = np.random.default_rng(0)
    sums = rng.normal(size=50_000)
    truth = 1.0 / (1.0 + np.exp(-(2.0 * sums - 1.0)))
    positive = rng.random(50_000) < truth
    found = calibrate(sums, positive)
    assert (found.slope, found.intercept) == pytest.approx((2.0, -1.0), abs=0.05)
    assert calibration_error(found.probabilities(sums), positive) < 0.01
    assert calibration_error(UNCALIBRATED.probabilities(sums), positive) > 0.1
    # What cannot be fitted stays as it is.
    sums = np.linspace(-1.0, 1.0, 10)
    assert calibrate(sums, np.zeros(10, bool)) == UNCALIBRATED
    assert calibrate(sums, sums < 0.0) == UNCALIBRATED  # larger sums are relevant less often


def test_the_error_is_that_of_each_bin() -> None:
    # Of two candidates at 0.25, one is relevant; of two at 1, both are.
    error = calibration_error(np.array([0.25, 0.25, 1.0, 1.0]), np.array([True, False, True, True]))
    assert error == pytest.approx((2 * 0.25) / 4)
    assert calibration_error(np.zeros(0), np.zeros(0, bool)) == 0.0

"""LightGBM's trees as an ONNX graph: the same leaves, so the same sums but for rounding."""

from pathlib import Path

import lightgbm
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.core.prediction.reranking.trees import OnnxTrees
from training.reranking.onnx_trees import as_onnx, rounded_down
from training.reranking.trees import learn_trees


def learned(rows: int = 2_000, trees: int = 30) -> tuple[lightgbm.Booster, np.ndarray]:
    """Many equal values: thresholds lie between neighbours."""
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

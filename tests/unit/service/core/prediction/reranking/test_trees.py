"""Trees as onnxruntime runs them."""

from pathlib import Path

import numpy as np
import pytest

from service.core.errors import BundleAltered
from service.core.prediction.reranking.features import FEATURES
from service.core.prediction.reranking.trees import OnnxTrees
from tests.support.tiny.encoder import write_tiny_encoder
from tests.support.tiny.reranker import TREES, tiny_trees
from training.reranking.onnx_trees import as_onnx


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trees") / "trees.onnx"
    path.write_bytes(as_onnx(tiny_trees().booster, trees=TREES).SerializeToString())
    return path


def test_each_candidate_has_a_sum_whatever_is_beside_it(graph: Path) -> None:
    trees = OnnxTrees(graph, features=len(FEATURES))
    features = (np.random.default_rng(1).random((50, len(FEATURES))) * 20).astype(np.float32)
    scores = trees.scores(features)
    assert scores.shape == (50,) and len(np.unique(scores)) > 10
    one_by_one = [float(trees.scores(row[None])[0]) for row in features]
    assert scores.tolist() == one_by_one
    assert trees.scores(features[:0]).tolist() == []


def test_trees_of_other_features_are_refused(graph: Path) -> None:
    with pytest.raises(BundleAltered, match="does not read features"):
        OnnxTrees(graph, features=3)


def test_other_graphs_are_refused(tmp_path: Path) -> None:
    write_tiny_encoder(tmp_path)
    with pytest.raises(BundleAltered, match="does not read features"):
        OnnxTrees(tmp_path / "encoder.onnx", features=len(FEATURES))
    (tmp_path / "no.onnx").write_text("no graph")
    with pytest.raises(BundleAltered, match="not a graph"):
        OnnxTrees(tmp_path / "no.onnx", features=len(FEATURES))

"""Gradient-boosted trees that order the candidates of a query (LambdaMART; Burges, 2010).

Platt scaling (Platt, 1999) turns the sum of the trees into a probability of relevance.

Shapes: m candidates, F features.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper
from sklearn.linear_model import LogisticRegression

from service.core.files.atomic import write_file
from service.core.prediction.reranking.reranker import INPUT, OUTPUT, probabilities
from service.core.types import Bools, Doubles

Features = NDArray[np.float32]  # [m, F]

PARAMETERS: dict[str, Any] = {
    "objective": "lambdarank",
    "lambdarank_truncation_level": 20,
    "learning_rate": 0.08,
    "num_leaves": 7,
    "min_data_in_leaf": 100,
    "feature_fraction": 0.5,
    "bagging_fraction": 0.7,
    "bagging_freq": 1,
    "deterministic": True,
    "force_row_wise": True,
    "verbose": -1,
}


@dataclass(frozen=True, kw_only=True, eq=False)
class LearnedTrees:
    """A trained ensemble."""

    booster: lightgbm.Booster

    @property
    def count(self) -> int:
        """The number of trees: fewer than requested if nothing is left to split."""
        return int(self.booster.num_trees())

    @property
    def features(self) -> int:
        """F, the number of features."""
        return int(self.booster.num_feature())

    def scores(self, features: Features, *, trees: int) -> Doubles:
        """The sum of the first `trees` trees for each candidate, [m]."""
        scores: Doubles = np.asarray(
            self.booster.predict(features, num_iteration=trees), np.float64
        )
        return scores

    def gains(self) -> dict[str, float]:
        """Each feature's share of the loss reduction by all splits, in descending order."""
        gains = self.booster.feature_importance("gain")
        shares = gains / max(gains.sum(), 1e-12)
        named = zip(self.booster.feature_name(), shares.tolist(), strict=True)
        return dict(sorted(named, key=lambda pair: -pair[1]))

    def write(self, path: Path) -> None:
        """Write the trees in LightGBM's own text format."""
        write_file(path, self.booster.model_to_string().encode())


def learn_trees(
    features: Features,
    positive: Bools,
    group_sizes: Sequence[int],
    *,
    names: Sequence[str],
    trees: int,
    seed: int,
) -> LearnedTrees:
    """Learn to rank positive candidates [m] first; the candidates of a query must be adjacent."""
    data = lightgbm.Dataset(
        features,
        positive.astype(np.int8),
        group=list(group_sizes),
        feature_name=[_plain(name) for name in names],
    )
    parameters = PARAMETERS | {"seed": seed}
    return LearnedTrees(booster=lightgbm.train(parameters, data, num_boost_round=trees))


def _plain(name: str) -> str:
    """Return a feature's name without commas and spaces, which LightGBM does not allow."""
    return "_".join(name.replace(",", " ").replace("'", " ").split())


ML_OPSET, OPSET, IR = 3, 17, 8
_LEAF, _AT_MOST = "LEAF", "BRANCH_LEQ"


def as_onnx(booster: lightgbm.Booster, *, trees: int) -> onnx.ModelProto:
    """Return an ONNX graph: the sum of the first `trees` trees for features [k, F], [k, 1]."""
    model = booster.dump_model(num_iteration=trees)
    nodes: dict[str, list[Any]] = {}
    for number, tree in enumerate(model["tree_info"]):
        for fields in _nodes(tree["tree_structure"], number):
            for name, value in fields.items():
                nodes.setdefault(name, []).append(value)
    ensemble = helper.make_node(
        "TreeEnsembleRegressor",
        [INPUT],
        [OUTPUT],
        domain="ai.onnx.ml",
        n_targets=1,
        aggregate_function="SUM",
        post_transform="NONE",
        **nodes,
    )
    width = len(model["feature_names"])
    graph = helper.make_graph(
        [ensemble],
        "reranker",
        [helper.make_tensor_value_info(INPUT, TensorProto.FLOAT, [None, width])],
        [helper.make_tensor_value_info(OUTPUT, TensorProto.FLOAT, [None, 1])],
    )
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("ai.onnx.ml", ML_OPSET)]
    found: onnx.ModelProto = helper.make_model(graph, opset_imports=opsets, ir_version=IR)
    onnx.checker.check_model(found)
    return found


def _nodes(root: Mapping[str, Any], tree: int) -> Iterator[dict[str, Any]]:
    """The attributes of each node of a tree; the root is node 0, and leaves also have targets."""
    waiting: list[tuple[int, Mapping[str, Any]]] = [(0, root)]
    last = 0
    while waiting:
        number, node = waiting.pop()
        is_leaf = "leaf_value" in node
        below = (0, 0) if is_leaf else (last + 1, last + 2)
        yield {
            "nodes_treeids": tree,
            "nodes_nodeids": number,
            "nodes_modes": _LEAF if is_leaf else _AT_MOST,
            "nodes_featureids": 0 if is_leaf else node["split_feature"],
            "nodes_values": 0.0 if is_leaf else rounded_down(node["threshold"]),
            "nodes_truenodeids": below[0],
            "nodes_falsenodeids": below[1],
            "nodes_missing_value_tracks_true": 0,
        }
        if is_leaf:
            yield {
                "target_treeids": tree,
                "target_nodeids": number,
                "target_ids": 0,
                "target_weights": float(node["leaf_value"]),
            }
            continue
        waiting += [(below[0], node["left_child"]), (below[1], node["right_child"])]
        last += 2


def rounded_down(threshold: float) -> float:
    """The greatest float32 that is not above `threshold`."""
    near = np.float32(threshold)
    if float(near) > threshold:
        near = np.nextafter(near, np.float32(-np.inf))
    return float(near)


_HARDLY_ANY = 1e6  # inverse strength of the regularization: weak, since two numbers cannot overfit


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """Slope and intercept that turn a sum of trees into a probability."""

    slope: float
    intercept: float

    def probabilities(self, sums: Doubles) -> Doubles:
        """The probabilities for sums of trees [m], [m]."""
        return probabilities(sums, slope=self.slope, intercept=self.intercept)


UNCALIBRATED = Calibration(slope=1.0, intercept=0.0)


def calibrate(sums: Doubles, positive: Bools) -> Calibration:
    """Fit to candidates [m] that the trees did not learn from.

    Returns `UNCALIBRATED` if all are alike, or if greater sums are not more often relevant.
    """
    if len(np.unique(positive)) < 2:
        return UNCALIBRATED
    fitted = LogisticRegression(C=_HARDLY_ANY).fit(sums[:, None], positive)
    slope, intercept = float(fitted.coef_[0, 0]), float(fitted.intercept_[0])
    return Calibration(slope=slope, intercept=intercept) if slope > 0.0 else UNCALIBRATED

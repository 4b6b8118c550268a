"""LightGBM's trees as an ONNX graph, which the service runs without LightGBM.

onnxruntime compares numbers of 32 bits where LightGBM has thresholds of 64. The features have 32
bits, so a threshold is rounded down to the next number of 32 bits: `x <= threshold` then says the
same of each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import lightgbm
import numpy as np
import onnx
from onnx import TensorProto, helper

from service.core.prediction.reranking.trees import INPUT, OUTPUT

ML_OPSET, OPSET, IR = 3, 17, 8
_LEAF, _AT_MOST = "LEAF", "BRANCH_LEQ"


def as_onnx(booster: lightgbm.Booster, *, trees: int) -> onnx.ModelProto:
    """The sum of the first `trees` trees of features [k, F], as scores [k, 1]."""
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
    """The attributes of each node of a tree, its root being number 0; leaves have targets, too."""
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
    """The greatest number of 32 bits that is not above a threshold."""
    near = np.float32(threshold)
    if float(near) > threshold:
        near = np.nextafter(near, np.float32(-np.inf))
    return float(near)

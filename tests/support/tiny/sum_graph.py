"""A graph for tiny bundles: a vector and those that belong to it become their normalised sum."""

from pathlib import Path

import numpy as np
from onnx import TensorProto, checker, helper, numpy_helper, save_model


def write_sum_graph(
    path: Path, *, one: str, others: str, present: str, result: str, dimension: int
) -> None:
    """Write the graph: `one` [n, d] + the sum of the `others` [n, m, d] that are `present` [n, m].

    The names are those of its three inputs and of its output.
    """
    nodes = [
        helper.make_node("Cast", [present], ["there"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["there", "last"], ["weights"]),
        helper.make_node("Mul", [others, "weights"], ["kept"]),
        helper.make_node("ReduceSum", ["kept", "middle"], ["all"], keepdims=0),
        helper.make_node("Add", [one, "all"], ["sum"]),
        helper.make_node("LpNormalization", ["sum"], [result], axis=-1, p=2),
    ]
    graph = helper.make_graph(
        nodes,
        "tiny-sum",
        inputs=[
            helper.make_tensor_value_info(one, TensorProto.FLOAT, ["n", dimension]),
            helper.make_tensor_value_info(others, TensorProto.FLOAT, ["n", "m", dimension]),
            helper.make_tensor_value_info(present, TensorProto.BOOL, ["n", "m"]),
        ],
        outputs=[helper.make_tensor_value_info(result, TensorProto.FLOAT, ["n", dimension])],
        initializer=[
            numpy_helper.from_array(np.array([-1], np.int64), "last"),
            numpy_helper.from_array(np.array([1], np.int64), "middle"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    checker.check_model(model)
    save_model(model, str(path))

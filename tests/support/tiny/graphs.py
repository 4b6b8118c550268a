"""Small ONNX graphs."""

from collections.abc import Mapping, Sequence

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, checker, helper, numpy_helper

Shapes = Mapping[str, Sequence[str | int | None]]  # by name


def graph_of(
    nodes: Sequence[NodeProto],
    inputs: Shapes,
    outputs: Shapes,
    constants: Mapping[str, np.ndarray] | None = None,
    **types: int,
) -> ModelProto:
    """Return a model; its inputs and outputs hold fp32 unless `types` has another type by name."""
    ends = [
        [
            helper.make_tensor_value_info(name, types.get(name, TensorProto.FLOAT), shape)
            for name, shape in shapes.items()
        ]
        for shapes in (inputs, outputs)
    ]
    tensors = [numpy_helper.from_array(value, name) for name, value in (constants or {}).items()]
    graph = helper.make_graph(nodes, "tiny", *ends, initializer=tensors)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    checker.check_model(model)
    return model

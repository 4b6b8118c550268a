"""An ONNX graph that can be rewritten: its nodes, constants and the producers of values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, helper, numpy_helper

from service.core.errors import InvalidInput

CONTRIB = "com.microsoft"  # the domain of onnxruntime's fused operators
LARGEST_FILE = 2**31 - 2**24  # bytes of constants; protobuf's limit less room for the nodes


class OnnxGraph:
    """A graph whose nodes can be replaced. Saving it leaves out unused nodes and constants.

    Nodes keep their order: a new node takes the position of the node that it replaces.
    """

    def __init__(self, model: ModelProto) -> None:
        """Rewrite `model` in place."""
        self._model = model
        self.nodes: list[NodeProto] = list(model.graph.node)
        self._constants = {tensor.name: tensor for tensor in model.graph.initializer}
        for node in self.nodes:
            if node.op_type == "Constant" and node.attribute[0].name == "value":
                self._constants[node.output[0]] = node.attribute[0].t

    @classmethod
    def read(cls, path: Path) -> OnnxGraph:
        """Read the graph at `path`."""
        return cls(onnx.load(path))

    @property
    def outputs(self) -> list[str]:
        """The names of the values that the graph returns."""
        return [output.name for output in self._model.graph.output]

    def constant(self, name: str) -> NDArray[np.generic] | None:
        """Return the value of a constant, or None if `name` is computed or an input."""
        tensor = self._constants.get(name)
        return None if tensor is None else numpy_helper.to_array(tensor)

    def add_constant(self, name: str, value: NDArray[np.generic]) -> str:
        """Add a constant, or replace the one of this name; returns its name."""
        tensor = numpy_helper.from_array(np.array(value, order="C"), name)
        self._constants[name] = tensor
        return name

    def set_columns(self, columns: int) -> None:
        """Declare the number of columns of the graph's only output, a matrix."""
        [output] = self._model.graph.output
        output.type.tensor_type.shape.dim[1].dim_value = columns

    def producers(self) -> dict[str, NodeProto]:
        """Return the node that computes each value."""
        return {output: node for node in self.nodes for output in node.output}

    def replace(self, replaced: NodeProto, nodes: Iterable[NodeProto]) -> None:
        """Replace a node by `nodes`; the last of them must produce its output."""
        place = next(place for place, node in enumerate(self.nodes) if node is replaced)
        self.nodes[place : place + 1] = nodes

    def rename(self, old: str, new: str) -> None:
        """Make every node that reads the value `old` read `new` instead."""
        for node in self.nodes:
            for place, name in enumerate(node.input):
                if name == old:
                    node.input[place] = new

    def model(self, *, extra_outputs: Sequence[str] = ()) -> ModelProto:
        """Return the graph as a model, which also returns the fp32 values `extra_outputs`."""
        model = ModelProto()
        model.CopyFrom(self._model)
        nodes = self._used_nodes((*self.outputs, *extra_outputs))
        read = {name for node in nodes for name in node.input}
        made = {name for node in nodes for name in node.output}
        del model.graph.node[:], model.graph.initializer[:], model.graph.value_info[:]
        model.graph.node.extend(nodes)
        for name in sorted(read & set(self._constants) - made):
            model.graph.initializer.append(self._constants[name])
            model.graph.initializer[-1].name = name
        for name in extra_outputs:
            value = helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None)
            model.graph.output.append(value)
        if all(opset.domain != CONTRIB for opset in model.opset_import):
            model.opset_import.append(helper.make_opsetid(CONTRIB, 1))
        return model

    def save(
        self, path: Path, *, may_split: bool = False, extra_outputs: Sequence[str] = ()
    ) -> None:
        """Write the graph to `path`, see `model`.

        More than `LARGEST_FILE` bytes do not fit into one file. With `may_split` the constants go
        into another file next to `path`. Raises `InvalidInput` otherwise.
        """
        model = self.model(extra_outputs=extra_outputs)
        size = sum(len(tensor.raw_data) for tensor in model.graph.initializer)
        if size <= LARGEST_FILE:
            onnx.save(model, path)
            return
        if not may_split:
            require_one_file(size)
        constants = f"{path.name}.data"
        (path.parent / constants).unlink(missing_ok=True)  # else onnx appends to it
        onnx.save(model, path, save_as_external_data=True, location=constants)

    def _used_nodes(self, outputs: Sequence[str]) -> list[NodeProto]:
        """Return the nodes that `outputs` depend on."""
        producers, used = self.producers(), set[int]()
        waiting = [producers[name] for name in outputs if name in producers]
        while waiting:
            node = waiting.pop()
            if id(node) not in used:
                used.add(id(node))
                waiting += [producers[name] for name in node.input if name in producers]
        return [node for node in self.nodes if id(node) in used]


def require_one_file(size: int) -> None:
    """Raise `InvalidInput` for a graph of more than `LARGEST_FILE` bytes."""
    if size > LARGEST_FILE:
        raise InvalidInput(
            f"the encoder's graph would have {size / 2**30:.1f} GiB, and a file of ONNX holds"
            " 2 GiB: export it with --quantize static-int8, which needs a quarter"
        )


def make_node(
    operator: str,
    inputs: Sequence[str],
    output: str,
    *,
    contrib: bool = False,
    **attributes: object,
) -> NodeProto:
    """Return a node with one output; `contrib` marks an operator of onnxruntime's own."""
    return helper.make_node(
        operator, list(inputs), [output], domain=CONTRIB if contrib else "", **attributes
    )


def attribute(node: NodeProto, name: str) -> object:
    """Return the value of a node's attribute; raises `StopIteration` if it has none."""
    found = next(attribute for attribute in node.attribute if attribute.name == name)
    return helper.get_attribute_value(found)

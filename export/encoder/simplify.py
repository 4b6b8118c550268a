"""Fewer nodes for a BERT's graph: what the optimizer of onnxruntime leaves to do.

For a text of four tokens a node costs about as much as its arithmetic. Traced embeddings compute
token types that are always zero, and traced normalisations compute shapes.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from onnx import NodeProto, TensorProto

from export.encoder.onnx_graph import OnnxGraph, attribute, make_node

MASK = "attention_mask"


def simplify(graph: OnnxGraph) -> None:
    """Rewrite the graph of a traced BERT in place; its vectors change by rounding at most."""
    for node in list(graph.nodes):
        if node.op_type == "EmbedLayerNormalization":
            _open_embeddings(graph, node)
        elif node.op_type == "Concat" and len(node.input) == 1:
            graph.rename(node.output[0], node.input[0])
        elif node.op_type == "ReduceSum":
            _pool_by_product(graph, node)
        elif node.op_type == "Div":
            _merge_normalisation(graph, node)


def _open_embeddings(graph: OnnxGraph, node: NodeProto) -> None:
    """Replace a fused embedding by a look-up and a sum.

    The encoder has no input for token types, so the vector of type 0 is added to every position's
    in advance. The look-up stands alone, so that its table can be quantized row by row.
    """
    ids, _, words, positions, types, scale, bias, mask = node.input
    output, mask_index = node.output
    embedded, length, first = f"{output}_words", f"{output}_length", f"{output}_positions"
    both = np.asarray(graph.constant(positions)) + np.asarray(graph.constant(types))[0]
    start = graph.add_constant(f"{output}_start", np.zeros(1, np.int64))
    inputs = (embedded, first, scale, bias)
    epsilon = attribute(node, "epsilon")
    graph.replace(
        node,
        [
            make_node("Gather", (words, ids), embedded),
            make_node("Shape", (ids,), length, start=1, end=2),
            make_node("Slice", (graph.add_constant(positions, both), start, length, start), first),
            make_node("SkipLayerNormalization", inputs, output, contrib=True, epsilon=epsilon),
        ],
    )
    graph.rename(mask_index, mask)


def _pool_by_product(graph: OnnxGraph, node: NodeProto) -> None:
    """Replace a sum over the tokens of the mask, [n, t, d] -> [n, d], by mask [n, 2, t] @ tokens.

    The product adds the tokens of a text one after the other, whatever the batch, so vectors are
    equal to the last bit. The sum has another order for a single text, and so has a product with
    one row; hence the two equal rows, of which one is used.
    """
    makers = graph.producers()
    masked = makers.get(node.input[0])
    if masked is None or masked.op_type != "Mul":
        return
    mask = _chain(makers, masked.input[1], "Cast", "Unsqueeze")
    if mask is None or mask[-1].input[0] != MASK:
        return
    tokens, output = masked.input[0], node.output[0]
    axis = graph.add_constant(f"{output}_axis", np.ones(1, np.int64))
    first = graph.add_constant(f"{output}_first", np.array(0, np.int64))
    graph.replace(
        node,
        [
            make_node("Unsqueeze", (MASK, axis), f"{output}_rows"),
            make_node("Cast", (f"{output}_rows",), f"{output}_row", to=TensorProto.FLOAT),
            make_node("Concat", (f"{output}_row", f"{output}_row"), f"{output}_mask", axis=1),
            make_node("MatMul", (f"{output}_mask", tokens), f"{output}_sums"),
            make_node("Gather", (f"{output}_sums", first), output, axis=1),
        ],
    )


def _merge_normalisation(graph: OnnxGraph, node: NodeProto) -> None:
    """Replace x / expand(clip(|x|)) by one node, and leave it out where |x| is 1 already."""
    makers, vectors = graph.producers(), node.input[0]
    steps = _chain(makers, node.input[1], "Expand", "Clip", "ReduceL2")
    if steps is None or steps[-1].input[0] != vectors:
        return
    before = makers.get(vectors)
    if before is not None and before.op_type == "LpNormalization":
        unit = make_node("Identity", (vectors,), node.output[0])
    else:
        unit = make_node("LpNormalization", (vectors,), node.output[0], axis=-1, p=2)
    graph.replace(node, [unit])


def _chain(
    makers: Mapping[str, NodeProto], name: str, *operators: str
) -> tuple[NodeProto, ...] | None:
    """Return the nodes that `name` comes from through first inputs, if they are `operators`."""
    nodes = []
    for operator in operators:
        node = makers.get(name)
        if node is None or node.op_type != operator:
            return None
        nodes.append(node)
        name = node.input[0]
    return tuple(nodes)

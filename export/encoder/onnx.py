"""Export a torch encoder as an ONNX graph that includes pooling and normalization.

They are part of the graph so that the service cannot implement them differently.

Shapes: n texts, t tokens, d dimensions.
"""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import torch
from onnx import NodeProto
from onnxruntime.transformers import optimizer
from torch import nn
from transformers import BertModel

from export.encoder.onnx_graph import LARGEST_FILE, OnnxGraph, attribute, make_node
from service.core.errors import InvalidInput
from training.models.pooled import PooledEncoder
from training.models.torch_encoder import TorchEncoder

INPUTS = ("input_ids", "attention_mask")  # [n, t] int64 each
OUTPUT = "vectors"  # [n, d] float32


def trace(encoder: TorchEncoder, target: Path) -> None:
    """Write the fp32 graph of `encoder` to `target`, for any number of texts and tokens.

    In a BERT, each attention, embedding and normalization becomes one node: the quantized graph is
    a fifth faster. In other networks only the pooling is rewritten. If the constants exceed 2 GiB,
    they go into a second file, see `OnnxGraph.save`. Raises `InvalidInput` if one alone exceeds it.
    """
    largest = max(4 * weights.numel() for weights in encoder.model.state_dict().values())
    if largest > LARGEST_FILE:
        raise InvalidInput(
            f"a weight of encoder {encoder.name!r} has {largest / 2**30:.1f} GiB in fp32, and ONNX"
            " holds 2 GiB in one value: export a smaller encoder"
        )
    modules = encoder.model.modules()
    bert = next((module for module in modules if isinstance(module, BertModel)), None)
    with quiet():
        graph = (
            _traced(encoder, target) if bert is None else _traced_and_fused(encoder, bert, target)
        )
        simplify(graph)
        # The tracer loses the dimension if pooling takes the first, the last or the largest token.
        graph.set_columns(encoder.dimension)
        graph.save(target, may_split=True)


def _traced(encoder: TorchEncoder, target: Path) -> OnnxGraph:
    dynamic = {0: torch.export.Dim("texts"), 1: torch.export.Dim("tokens")}
    program = torch.onnx.export(
        PooledEncoder(encoder.model).eval(),
        tuple(_example(encoder).values()),
        input_names=list(INPUTS),
        output_names=[OUTPUT],
        dynamic_shapes=dict.fromkeys(INPUTS, dynamic),
        dynamo=True,
        verbose=False,
    )
    _remove_stack_traces(program)
    program.save(target, external_data=encoder.size > LARGEST_FILE)
    return OnnxGraph.read(target)


def _traced_and_fused(encoder: TorchEncoder, bert: BertModel, target: Path) -> OnnxGraph:
    """Export through TorchScript: the optimizer can fuse only graphs of this form."""
    axes = {0: "texts", 1: "tokens"}
    attention = bert.config._attn_implementation
    bert.set_attn_implementation("eager")  # the optimizer knows no other implementation
    try:
        trace_script(
            PooledEncoder(encoder.model),
            _example(encoder),
            OUTPUT,
            target,
            axes={**dict.fromkeys(INPUTS, axes), OUTPUT: {0: "texts"}},
        )
    finally:
        bert.set_attn_implementation(attention)
    optimized = optimizer.optimize_model(
        str(target),
        model_type="bert",
        num_heads=bert.config.num_attention_heads,
        hidden_size=bert.config.hidden_size,
        opt_level=0,  # higher levels would fit the graph to this machine's CPU
    )
    return OnnxGraph(optimized.model)


def trace_script(
    network: nn.Module,
    example: Mapping[str, torch.Tensor],
    output: str,
    target: Path,
    *,
    axes: Mapping[str, Mapping[int, str]],
) -> None:
    """Write `network`'s TorchScript graph, traced with `example`; `axes` may vary in size."""
    with quiet():
        torch.onnx.export(
            network.eval(),
            tuple(example.values()),
            str(target),
            input_names=list(example),
            output_names=[output],
            dynamic_axes=axes,
            opset_version=17,
            dynamo=False,
        )


def _example(encoder: TorchEncoder) -> dict[str, torch.Tensor]:
    """Return the graph's inputs for two texts of different length, [2, t] each."""
    example = encoder.tokenizer(
        ["a first text", "a second and somewhat longer text"],
        padding=True,
        truncation=True,
        max_length=encoder.max_tokens,
        return_tensors="pt",
    )
    return {name: example[name] for name in INPUTS}


def _remove_stack_traces(program: torch.onnx.ONNXProgram) -> None:
    """Remove each node's stack trace: local paths in it would change the fingerprint."""
    for graph in (program.model.graph, *program.model.functions.values()):
        graph.metadata_props.clear()
        for node in graph.all_nodes():
            node.metadata_props.clear()


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Suppress the progress notes and deprecation warnings of torch's exporter in the block."""
    previous = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(previous)


MASK = "attention_mask"


def simplify(graph: OnnxGraph) -> None:
    """Rewrite a traced graph in place; its vectors change by rounding at most."""
    for node in list(graph.nodes):
        if node.op_type == "EmbedLayerNormalization":
            _open_embeddings(graph, node)
        elif node.op_type == "Concat" and len(node.input) == 1:
            graph.rename(node.output[0], node.input[0])
        elif node.op_type == "ReduceSum":
            _pool_by_product(graph, node)
        elif node.op_type == "Div":
            _merge_normalization(graph, node)


def _open_embeddings(graph: OnnxGraph, node: NodeProto) -> None:
    """Replace a fused embedding by a look-up and a sum.

    All tokens have type 0, so its vector is added to the position vectors at export. The look-up is
    a node of its own, so its table can be quantized row by row.
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
    """Replace a sum of weighted tokens, [n, t, d] -> [n, d], by weights [n, 2, t] @ tokens.

    Weights are the mask, or a multiple of it. The product adds a text's tokens in the same order in
    any batch, so vectors are bit-identical. A sum, or a product with one row, has another order for
    a single text. Therefore the weights have two equal rows, and one result is dropped.
    """
    makers = graph.producers()
    weighted = makers.get(node.input[0])
    if weighted is None or weighted.op_type != "Mul":
        return
    tokens, weights = weighted.input
    if not _is_of_mask(makers, weights) or _is_of_mask(makers, tokens):
        return
    output = node.output[0]
    first = graph.add_constant(f"{output}_first", np.array(0, np.int64))
    graph.replace(
        node,
        [
            make_node("Transpose", (weights,), f"{output}_row", perm=[0, 2, 1]),
            make_node("Concat", (f"{output}_row", f"{output}_row"), f"{output}_rows", axis=1),
            make_node("MatMul", (f"{output}_rows", tokens), f"{output}_sums"),
            make_node("Gather", (f"{output}_sums", first), output, axis=1),
        ],
    )


def _is_of_mask(makers: Mapping[str, NodeProto], name: str) -> bool:
    """Whether a value is the mask or a product with it, as a column per text, [n, t, 1]."""
    maker = makers.get(name)
    if maker is not None and maker.op_type == "Mul":
        return any(_is_of_mask(makers, factor) for factor in maker.input)
    mask = _chain(makers, name, "Cast", "Unsqueeze")
    return mask is not None and mask[-1].input[0] == MASK


def _merge_normalization(graph: OnnxGraph, node: NodeProto) -> None:
    """Replace x / expand(clip(|x|)) by one node, or remove it if |x| is 1 already."""
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
    """Follow first inputs back from `name`; return the nodes if their types are `operators`."""
    nodes = []
    for operator in operators:
        node = makers.get(name)
        if node is None or node.op_type != operator:
            return None
        nodes.append(node)
        name = node.input[0]
    return tuple(nodes)

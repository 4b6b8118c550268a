"""From a torch encoder to an ONNX graph that includes pooling and normalisation.

They are part of the graph so that the service cannot implement them differently.

Shapes: n texts, t tokens, d dimensions.
"""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch
from onnxruntime.transformers import optimizer
from transformers import BertModel

from export.encoder.onnx_graph import OnnxGraph
from export.encoder.simplify import simplify
from training.models.pooled import PooledEncoder
from training.models.torch_encoder import TorchEncoder

INPUTS = ("input_ids", "attention_mask")  # [n, t] int64 each
OUTPUT = "vectors"  # [n, d] float32


def trace(encoder: TorchEncoder, target: Path) -> None:
    """Write the fp32 graph of `encoder` to `target`, for any number of texts and tokens.

    In a BERT, each attention, embedding and normalisation is fused into one node, which makes the
    quantized graph a fifth faster. Any other network is written as torch exports it.
    """
    modules = encoder.model.modules()
    bert = next((module for module in modules if isinstance(module, BertModel)), None)
    with quiet():
        if bert is None:
            _trace_plain(encoder, target)
        else:
            _trace_fused(encoder, bert, target)


def _trace_plain(encoder: TorchEncoder, target: Path) -> None:
    dynamic = {0: torch.export.Dim("texts"), 1: torch.export.Dim("tokens")}
    program = torch.onnx.export(
        PooledEncoder(encoder.model).eval(),
        _example(encoder),
        input_names=list(INPUTS),
        output_names=[OUTPUT],
        dynamic_shapes=dict.fromkeys(INPUTS, dynamic),
        dynamo=True,
        verbose=False,
    )
    _remove_stack_traces(program)
    program.save(target, external_data=False)


def _trace_fused(encoder: TorchEncoder, bert: BertModel, target: Path) -> None:
    """Export through TorchScript: the optimizer's fusions match patterns of its graphs only."""
    axes = {0: "texts", 1: "tokens"}
    attention = bert.config._attn_implementation
    bert.set_attn_implementation("eager")  # the optimizer knows no other implementation
    try:
        torch.onnx.export(
            PooledEncoder(encoder.model).eval(),
            _example(encoder),
            str(target),
            input_names=list(INPUTS),
            output_names=[OUTPUT],
            dynamic_axes={**dict.fromkeys(INPUTS, axes), OUTPUT: {0: "texts"}},
            opset_version=17,
            dynamo=False,
        )
    finally:
        bert.set_attn_implementation(attention)
    optimized = optimizer.optimize_model(
        str(target),
        model_type="bert",
        num_heads=bert.config.num_attention_heads,
        hidden_size=bert.config.hidden_size,
        opt_level=0,  # higher levels would fit the graph to this machine's processor
    )
    graph = OnnxGraph(optimized.model)
    simplify(graph)
    graph.save(target)


def _example(encoder: TorchEncoder) -> tuple[torch.Tensor, ...]:
    """Return the graph's inputs for two texts of different length, [2, t] each."""
    example = encoder.tokenizer(
        ["a first text", "a second and somewhat longer text"], padding=True, return_tensors="pt"
    )
    return tuple(example[name] for name in INPUTS)


def _remove_stack_traces(program: torch.onnx.ONNXProgram) -> None:
    """Remove each node's stack trace: its paths of this machine would change the fingerprint."""
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

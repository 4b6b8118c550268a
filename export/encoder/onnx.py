"""Torch encoder -> ONNX graph; pooling and normalisation go inside, so serving cannot drift.

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

from training.models.pooled import PooledEncoder
from training.models.torch_encoder import TorchEncoder

INPUTS = ("input_ids", "attention_mask")  # [n, t] int64 each
OUTPUT = "vectors"  # [n, d] float32


def trace(encoder: TorchEncoder, target: Path) -> None:
    """Write the fp32 graph of `encoder` to `target`, for any number of texts and tokens.

    A BERT's attention, embeddings and norms become one node each, which takes a fifth off the time
    of a quantized text; any other network is written as torch has it.
    """
    bert = next((each for each in encoder.model.modules() if isinstance(each, BertModel)), None)
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
    _forget_origins(program)
    program.save(target, external_data=False)


def _trace_fused(encoder: TorchEncoder, bert: BertModel, target: Path) -> None:
    """Through TorchScript, whose graphs are the ones that the optimizer knows the patterns of."""
    axes = {0: "texts", 1: "tokens"}
    attention = bert.config._attn_implementation
    bert.set_attn_implementation("eager")  # plain products are a pattern, one fused call is none
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
        opt_level=0,  # the runtime's own rewriting would be bound to this processor
    )
    optimized.save_model_to_file(str(target))


def _example(encoder: TorchEncoder) -> tuple[torch.Tensor, ...]:
    """Two texts [2, t] of different length."""
    example = encoder.tokenizer(
        ["a first text", "a second and somewhat longer text"], padding=True, return_tensors="pt"
    )
    return tuple(example[name] for name in INPUTS)


def _forget_origins(program: torch.onnx.ONNXProgram) -> None:
    """Drop each node's stack trace: it holds paths of this machine and changes the fingerprint."""
    for graph in (program.model.graph, *program.model.functions.values()):
        graph.metadata_props.clear()
        for node in graph.all_nodes():
            node.metadata_props.clear()


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep the exporter's progress notes and deprecation warnings off the user's terminal."""
    previous = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(previous)

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

from training.encoder import TorchEncoder
from training.pooled import PooledEncoder

INPUTS = ("input_ids", "attention_mask")  # [n, t] int64 each
OUTPUT = "vectors"  # [n, d] float32


def trace(encoder: TorchEncoder, target: Path) -> None:
    """Write the fp32 graph of `encoder` to `target`, for any number of texts and tokens."""
    example = encoder.tokenizer(
        ["a first text", "a second and somewhat longer text"], padding=True, return_tensors="pt"
    )
    dynamic = {0: torch.export.Dim("texts"), 1: torch.export.Dim("tokens")}
    with _quiet():
        program = torch.onnx.export(
            PooledEncoder(encoder.model).eval(),
            tuple(example[name] for name in INPUTS),
            input_names=list(INPUTS),
            output_names=[OUTPUT],
            dynamic_shapes=dict.fromkeys(INPUTS, dynamic),
            dynamo=True,
            verbose=False,
        )
        _forget_origins(program)
        program.save(target, external_data=False)


def _forget_origins(program: torch.onnx.ONNXProgram) -> None:
    """Drop each node's stack trace: it holds paths of this machine and changes the fingerprint."""
    for graph in (program.model.graph, *program.model.functions.values()):
        graph.metadata_props.clear()
        for node in graph.all_nodes():
            node.metadata_props.clear()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep the exporter's progress notes and deprecation warnings off the user's terminal."""
    previous = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(previous)

"""An exported encoder as a checkpoint again: its int8 weights back in floating point.

An exported encoder (`encoder.json`, `encoder.onnx`) can be distilled where its checkpoint is not at
hand, as that of the demo. Each weight is (q - zero point) * scale, so it differs from the
checkpoint's by half a quantization step at most; activations are not quantized.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import torch

from service.core.errors import InvalidData, MissingExtra
from service.core.types import Floats
from training.checkpoints.choices import Choices
from training.models.torch_encoder import TorchEncoder, load_encoder

EXPORTED, GRAPH = "encoder.json", "encoder.onnx"
_PREFIX = "model.0.model."  # of a transformer's weights in the graph
_PRODUCT = re.compile(r"encoder/layer\.(\d+)/(.*)/MatMul_quant$")  # the name of a linear layer
_STATIC_PRODUCT = re.compile(r"encoder/layer\.(\d+)/(.*dense)/MatMul_output_0_weights$")
_STATIC_ATTENTION = re.compile(r"encoder/layer\.(\d+)/attention/self/.*_weights$")
_WORDS = f"{_PREFIX}embeddings.word_embeddings.weight"
_PROJECTIONS = ("query", "key", "value")  # concatenated in the graph's attention


@dataclass(frozen=True, kw_only=True, eq=False)
class LoadedExport:
    """The encoder, and the inference settings that its export stored."""

    encoder: TorchEncoder
    choices: Choices


def load_exported(folder: Path, *, max_tokens: int | None = None) -> LoadedExport:
    """Load an exported BERT whose `encoder.json` names the encoder that it was trained from.

    Raises `InvalidData` where it names none, or where the graph lacks a weight.
    """
    description = _description(folder)
    facts = description["encoder"]
    base = load_encoder(
        description["origin"]["base"],
        max_tokens=max_tokens or facts["max_tokens"],
        query_prompt=facts["query_prompt"],
        label_prompt=facts["label_prompt"],
    )
    transformer = base.model[0].model
    weights = _graph_weights(folder / GRAPH, layers=transformer.config.num_hidden_layers)
    unused = {name for name in transformer.state_dict() if name.startswith("pooler.")}
    missing = set(transformer.state_dict()) - unused - set(weights)
    if missing:
        raise InvalidData(
            folder / GRAPH, f"lacks the weights {sorted(missing)[0]}; distill from the checkpoint"
        )
    tensors = {name: torch.from_numpy(np.array(value)) for name, value in weights.items()}
    transformer.load_state_dict(tensors, strict=False)
    encoder = TorchEncoder(
        name=str(folder), model=base.model, prompts=base.prompts, max_tokens=base.max_tokens
    )
    choices = Choices(system="encoder", **description["predictor"])
    return LoadedExport(encoder=encoder, choices=choices)


def _description(folder: Path) -> dict[str, Any]:
    path = folder / EXPORTED
    try:
        description: dict[str, Any] = orjson.loads(path.read_bytes())
        _ = description["encoder"]["max_tokens"], description["predictor"]
        _ = description["origin"]["base"]
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        message = "does not say which encoder it was trained from; distill from the checkpoint"
        raise InvalidData(path, message) from error
    return description


def _graph_weights(path: Path, *, layers: int) -> dict[str, Floats]:
    """The weights of a graph by their names in the transformer."""
    try:
        import onnx
        from onnx.numpy_helper import to_array
    except ImportError as error:
        raise MissingExtra("onnx", extra="export") from error
    graph = onnx.load(path).graph
    stored = {tensor.name: to_array(tensor) for tensor in graph.initializer}
    if f"{_WORDS}_int8" in stored:
        return _static_weights(stored, graph)
    weights = {
        name.removeprefix(_PREFIX): value
        for name, value in stored.items()
        if name.startswith(_PREFIX) and value.dtype == np.float32 and not name.endswith("_scale")
    }
    for quantized in (name for name in stored if name.endswith("_quantized")):
        name = quantized.removesuffix("_quantized")
        if name.startswith(_PREFIX):
            weights[name.removeprefix(_PREFIX)] = _dequantized(stored, name)
    for node in graph.node:
        product = _PRODUCT.search(node.name)
        if product is not None:
            layer, part = product[1], product[2].replace("/", ".")
            name = node.input[1].removesuffix("_quantized")
            weights[f"encoder.layer.{layer}.{part}.weight"] = _dequantized(stored, name).T
    for layer_number in range(layers):
        weights.update(_attention(stored, layer_number))
    return weights


def _static_weights(stored: dict[str, Any], graph: Any) -> dict[str, Floats]:
    """The weights of a graph in static int8, see `export.encoder.static_int8`."""
    weights = {
        name.removeprefix(_PREFIX): value
        for name, value in stored.items()
        if name.startswith(_PREFIX) and value.dtype == np.float32 and not name.endswith("_scale")
    }
    weights["embeddings.word_embeddings.weight"] = (
        stored[f"{_WORDS}_int8"].astype(np.float32) * stored[f"{_WORDS}_scale"]
    )
    # The vectors of positions include that of token type 0.
    width = weights["embeddings.word_embeddings.weight"].shape[1]
    weights["embeddings.token_type_embeddings.weight"] = np.zeros((2, width), np.float32)
    biases = {node.output[0]: node.input[2] for node in graph.node if node.op_type == "QAttention"}
    for name in stored:
        product, attention = _STATIC_PRODUCT.search(name), _STATIC_ATTENTION.search(name)
        if product is not None:
            part = product[2].replace("/", ".")
            weights[f"encoder.layer.{product[1]}.{part}.weight"] = _unsmoothed(stored, name).T
        elif attention is not None:
            place = f"encoder.layer.{attention[1]}.attention.self"
            bias = np.split(stored[biases[name.removesuffix("_weights")]], 3)
            matrices = np.split(_unsmoothed(stored, name), 3, axis=1)
            for part, matrix, vector in zip(_PROJECTIONS, matrices, bias, strict=True):
                weights[f"{place}.{part}.weight"] = matrix.T
                weights[f"{place}.{part}.bias"] = vector
    return weights


def _unsmoothed(stored: dict[str, Any], name: str) -> Floats:
    """W = q s / f; without factors f in the graph, the values before the product hold them."""
    product = name.removesuffix("_weights")
    weights: Floats = stored[name].astype(np.float32) * stored[f"{product}_weight_scales"]
    inverse = stored.get(f"{product}_inverse_factors")
    return weights if inverse is None else weights * inverse[:, None]


def _attention(stored: dict[str, Any], layer: int) -> dict[str, Floats]:
    """The three projections of a layer's attention, from its fused weights [d, 3 d]."""
    name = f"Attention_{layer}_qkv"
    if f"{name}_weight_quantized" not in stored:
        return {}
    weights = np.split(_dequantized(stored, f"{name}_weight"), 3, axis=1)
    biases = np.split(stored[f"{name}_bias"], 3)
    place = f"encoder.layer.{layer}.attention.self"
    return {
        **{f"{place}.{part}.weight": w.T for part, w in zip(_PROJECTIONS, weights, strict=True)},
        **{f"{place}.{part}.bias": b for part, b in zip(_PROJECTIONS, biases, strict=True)},
    }


def _dequantized(stored: dict[str, Any], name: str) -> Floats:
    zero_point = stored[f"{name}_zero_point"].astype(np.float32)
    values: Floats = (stored[f"{name}_quantized"].astype(np.float32) - zero_point) * stored[
        f"{name}_scale"
    ]
    return values

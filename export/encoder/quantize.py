"""Quantization of an fp32 graph to 8 bits.

| name          | activations              | weights             | batches |
|---------------|--------------------------|---------------------|---------|
| `static-int8` | scales fixed at export   | per channel, 7 bits | yes     |
| `int8`        | a scale for each batch   | per channel, 8 bits | no      |
| `none`        | fp32                     | fp32                | yes     |

In static int8, a text's vector is the same in any batch. The fp32 graph first runs on a few
thousand tokens to measure activations. Every product with a constant matrix then becomes a product
of integers (X [m, k] activations, W [k, n] weights):

    X W = (X / f) (f W)  ~  scale_x (q_x - zero_x) . scale_w q_w

f [k] moves outliers of single activation channels into the weights (SmoothQuant, arXiv 2211.10438,
Eq. 4). Weights have one scale per column and 7 bits. CPUs without VNNI add two products in 16 bits,
which 255 * 63 * 2 fits. All CPUs therefore compute equal sums.

An embedding table gets one scale per row. Normalization, softmax and GELU stay in fp32.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto

from export.encoder.onnx_graph import OnnxGraph, attribute, make_node
from service.core.encoding.onnx_session import graph_inputs
from service.core.types import Floats

STRENGTH = 0.7  # SmoothQuant's alpha: 0 leaves all outliers in the activations, 1 none
LARGEST_WEIGHT = 63
LARGEST_ACTIVATION = 255
KEPT_SHARES = (0.999, 0.9999, 0.99999, 1.0)  # of activations that the range may cover
CALIBRATION_TOKENS = 4096

Scale = tuple[np.float32, np.uint8]  # and zero point

# Whether a text has the same vector in every batch, up to fp32 rounding, by quantization.
BATCH_INVARIANT = {"static-int8": True, "int8": False, "none": True}


def quantize(
    fp32: Path, target: Path, quantization: str, *, calibration: Sequence[list[int]] = ()
) -> None:
    """Write the quantized form of the graph at `fp32` to `target`.

    `calibration` are token ids of typical texts in random order, for `static-int8`.
    """
    if quantization == "none":
        shutil.copyfile(fp32, target)
    elif quantization == "int8":
        _quantize_dynamically(fp32, target)
    else:
        graph = OnnxGraph.read(fp32)
        quantize_statically(graph, calibration)
        graph.save(target)


def _quantize_dynamically(fp32: Path, target: Path) -> None:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    # Hide onnxruntime's advice to pre-process the graph: it does not help transformers.
    logging.getLogger().addFilter(_no_preprocessing_advice)
    try:
        quantize_dynamic(
            fp32,
            target,
            per_channel=True,
            weight_type=QuantType.QInt8,
            # Shape inference does not know the output types of fused nodes.
            extra_options={"DefaultTensorType": TensorProto.FLOAT},
        )
    finally:
        logging.getLogger().removeFilter(_no_preprocessing_advice)


def _no_preprocessing_advice(record: logging.LogRecord) -> bool:
    return "pre-processing before quantization" not in record.getMessage()


def quantize_statically(graph: OnnxGraph, texts: Sequence[list[int]]) -> None:
    """Quantize the products and embedding tables of `graph` in place.

    `texts` are token ids to calibrate with: typical texts in random order.
    """
    products = [
        node
        for node in graph.nodes
        if node.op_type in ("MatMul", "Attention") and _is_matrix(graph, node.input[1])
    ]
    observed = _observe(graph, {node.input[0] for node in products}, texts)
    for node in reversed(products):  # smoothing may change an earlier product's weights
        _quantize_product(graph, node, observed[node.input[0]])
    for node in list(graph.nodes):
        if node.op_type == "Gather" and _is_matrix(graph, node.input[0]):
            _quantize_embedding(graph, node)


def smoothing_factors(activations: Floats, weights: Floats) -> Floats:
    """Return f [k]: max|X_j|^alpha / max|W_j|^(1 - alpha) (SmoothQuant Eq. 4), geometric mean 1."""
    largest = np.abs(activations).max(axis=0) + 1e-6  # [k]
    factors = largest**STRENGTH / (np.abs(weights).max(axis=1) + 1e-6) ** (1 - STRENGTH)
    normalized: Floats = (factors / np.exp(np.log(factors).mean())).astype(np.float32)
    return normalized


def activation_scale(activations: Floats) -> Scale:
    """Try the ranges of `KEPT_SHARES`; return the scale and zero point of least squared error.

    A range without the rarest values has a finer resolution for all others.
    """
    shares = np.array(KEPT_SHARES)
    lowest, highest = np.quantile(activations, np.stack([1 - shares, shares]))
    return min(
        map(_scale_of_range, lowest, highest),
        key=lambda scale: float(((_rounded(activations, *scale) - activations) ** 2).mean()),
    )


def quantized_columns(weights: Floats) -> tuple[NDArray[np.int8], Floats]:
    """Return W [k, n] rounded to 7 bits, and each column's scale [n]."""
    scales = np.maximum(np.abs(weights).max(axis=0), 1e-12) / LARGEST_WEIGHT
    return np.round(weights / scales).astype(np.int8), scales.astype(np.float32)


def _is_matrix(graph: OnnxGraph, name: str) -> bool:
    """Whether a value is a constant matrix in fp32."""
    value = graph.constant(name)
    return value is not None and value.ndim == 2 and value.dtype == np.float32


def _observe(
    graph: OnnxGraph, names: Iterable[str], texts: Sequence[list[int]]
) -> dict[str, Floats]:
    """Return the named activations [tokens, k] on the first `CALIBRATION_TOKENS` of `texts`."""
    values: dict[str, list[Floats]] = {name: [] for name in sorted(names)}
    if not values:
        return {}
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "observed.onnx"
        graph.save(path, may_split=True, extra_outputs=list(values))
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    tokens = 0
    for ids in texts:
        if tokens >= CALIBRATION_TOKENS:
            break
        tokens += len(ids)
        for name, value in zip(values, session.run(list(values), graph_inputs([ids])), strict=True):
            values[name].append(value.reshape(-1, value.shape[-1]))
    return {name: np.concatenate(rows) for name, rows in values.items()}


def _quantize_product(graph: OnnxGraph, node: NodeProto, activations: Floats) -> None:
    """Replace a product by integer arithmetic: divide by f, quantize, multiply."""
    source, weights_name, output = node.input[0], node.input[1], node.output[0]
    weights = np.asarray(graph.constant(weights_name), np.float32)
    factors = smoothing_factors(activations, weights)
    new = []
    if not _divided_in_attention(graph, node, factors):
        inverse = graph.add_constant(f"{output}_inverse_factors", 1 / factors)
        new.append(make_node("Mul", (source, inverse), f"{output}_smooth"))
        source = f"{output}_smooth"
    scale, zero = activation_scale(activations / factors)
    columns, column_scales = quantized_columns(weights * factors[:, None])
    values: dict[str, NDArray[Any]] = {
        "scale": np.array(scale, np.float32),
        "zero": np.array(zero, np.uint8),
        "weights": columns,
        "weight_scales": column_scales,
        "weight_zeros": np.zeros(len(column_scales), np.int8),
    }
    names = {name: graph.add_constant(f"{output}_{name}", one) for name, one in values.items()}
    quantized = f"{output}_int8"
    new.append(make_node("QuantizeLinear", (source, names["scale"], names["zero"]), quantized))
    new.append(_integer_product(node, quantized, names))
    graph.replace(node, new)


def _integer_product(node: NodeProto, quantized: str, names: Mapping[str, str]) -> NodeProto:
    weights, zeros = names["weights"], names["weight_zeros"]
    scales = (names["scale"], names["weight_scales"])
    if node.op_type == "MatMul":
        factors = (quantized, weights, *scales, names["zero"], zeros)
        return make_node("MatMulIntegerToFloat", factors, node.output[0], contrib=True)
    bias, mask = node.input[2], node.input[3]
    inputs = (quantized, weights, bias, *scales, mask, names["zero"], zeros)
    heads = attribute(node, "num_heads")
    return make_node("QAttention", inputs, node.output[0], contrib=True, num_heads=heads)


def _divided_in_attention(graph: OnnxGraph, node: NodeProto, factors: Floats) -> bool:
    """If attention feeds a product, divide its value weights by f instead of its output.

    This saves a node. Attention's weights are queries, keys and values side by side, [k, 3 n].
    """
    maker = graph.producers().get(node.input[0])
    readers = sum(node.input[0] in reader.input for reader in graph.nodes)
    if maker is None or maker.op_type != "Attention" or readers != 1:
        return False
    for name in maker.input[1:3]:
        changed = np.array(graph.constant(name), np.float32)
        changed[..., -len(factors) :] /= factors
        graph.add_constant(name, changed)
    return True


def _quantize_embedding(graph: OnnxGraph, node: NodeProto) -> None:
    """Replace a look-up in a table [v, d] by an int8 look-up times the row's scale."""
    name, ids, output = node.input[0], node.input[1], node.output[0]
    table = np.asarray(graph.constant(name), np.float32)
    scales = np.maximum(np.abs(table).max(axis=1, keepdims=True), 1e-12) / 127  # [v, 1]
    rows = graph.add_constant(f"{name}_int8", np.round(table / scales).astype(np.int8))
    scale = graph.add_constant(f"{name}_scale", scales.astype(np.float32))
    graph.replace(
        node,
        [
            make_node("Gather", (rows, ids), f"{output}_int8"),
            make_node("Cast", (f"{output}_int8",), f"{output}_float", to=TensorProto.FLOAT),
            make_node("Gather", (scale, ids), f"{output}_scale"),
            make_node("Mul", (f"{output}_float", f"{output}_scale"), output),
        ],
    )


def _scale_of_range(lowest: float, highest: float) -> Scale:
    """Return the scale and zero point whose integers cover a range, extended to include 0."""
    low, high = min(0.0, lowest), max(0.0, highest)
    scale = max(high - low, 1e-12) / LARGEST_ACTIVATION
    return np.float32(scale), np.uint8(round(-low / scale))


def _rounded(activations: Floats, scale: np.float32, zero: np.uint8) -> Floats:
    """Return the activations after quantization and back to float."""
    integers = np.clip(np.round(activations / scale) + zero, 0, LARGEST_ACTIVATION)
    return (integers - np.float32(zero)) * scale

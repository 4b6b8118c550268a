"""Static int8: exact integer sums, scales that no neighbour changes, outliers moved to weights."""

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from export.encoder.onnx_graph import OnnxGraph
from export.encoder.static_int8 import (
    activation_scale,
    quantize_statically,
    quantized_columns,
    smoothing_factors,
)

WIDTH, TOKENS = 64, 50


def embedded_product(weights: np.ndarray, table: np.ndarray) -> OnnxGraph:
    """A graph that looks token ids up in `table` [v, k] and multiplies by `weights` [k, n]."""
    ids = [
        helper.make_tensor_value_info(name, TensorProto.INT64, ["n", "t"])
        for name in ("input_ids", "attention_mask")
    ]
    graph = helper.make_graph(
        [
            helper.make_node("Gather", ["table", "input_ids"], ["x"]),
            helper.make_node("MatMul", ["x", "weights"], ["y"]),
        ],
        "product",
        ids,
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", "t", weights.shape[1]])],
        [numpy_helper.from_array(weights, "weights"), numpy_helper.from_array(table, "table")],
    )
    opsets = [helper.make_opsetid("", 17)]
    return OnnxGraph(helper.make_model(graph, opset_imports=opsets, ir_version=8))


def output(graph: OnnxGraph, ids: np.ndarray) -> np.ndarray:
    session = onnxruntime.InferenceSession(
        graph.model().SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return session.run(None, {"input_ids": ids, "attention_mask": np.ones_like(ids)})[0]


def random_graph(*, outlier: float = 1.0) -> tuple[OnnxGraph, np.ndarray]:
    """The graph for random weights, and its exact products [v, n]; `outlier` scales a channel."""
    rng = np.random.default_rng(0)
    table = rng.standard_normal((TOKENS, WIDTH)).astype(np.float32)
    table[:, 3] *= outlier
    weights = rng.standard_normal((WIDTH, WIDTH)).astype(np.float32)
    return embedded_product(weights, table), table @ weights


def test_factors_are_those_of_smooth_quant() -> None:
    """Eq. 4 with alpha 0.7: 8^0.7 / 2^0.3 = 3.482 and 1 / 1, then divided by their mean 1.866."""
    activations = np.array([[8, 1], [-2, -1]], np.float32)
    weights = np.array([[2, 1], [1, 1]], np.float32)
    assert smoothing_factors(activations, weights) == pytest.approx([1.866, 0.536], abs=1e-3)


def test_a_range_without_rare_values_has_less_error() -> None:
    values = np.random.default_rng(0).laplace(size=200_000).astype(np.float32)
    scale, zero = activation_scale(values)
    assert scale < 0.95 * (values.max() - values.min()) / 255
    assert 100 < zero < 155


def test_a_range_of_positive_values_starts_at_zero() -> None:
    scale, zero = activation_scale(np.linspace(0.5, 2.55, 1000, dtype=np.float32))
    assert (scale, zero) == (pytest.approx(0.01, rel=1e-3), 0)


def test_weights_have_seven_bits_and_a_scale_for_each_column() -> None:
    weights = np.array([[6.3, -0.5], [-3.1, 0.254]], np.float32)
    columns, scales = quantized_columns(weights)
    assert columns.tolist() == [[63, -63], [-31, 32]]
    assert scales == pytest.approx([0.1, 0.5 / 63])


def test_it_is_close_and_a_quarter_of_the_size(tmp_path: Path) -> None:
    graph, exact = random_graph()
    graph.save(tmp_path / "fp32.onnx")
    quantize_statically(graph, [list(range(TOKENS))])
    graph.save(tmp_path / "int8.onnx")
    ours = output(graph, np.arange(TOKENS)[None])[0]
    assert np.abs(ours - exact).max() < 0.03 * np.abs(exact).max()
    sizes = [(tmp_path / f"{name}.onnx").stat().st_size for name in ("int8", "fp32")]
    assert sizes[0] < 0.35 * sizes[1]


def test_an_outlying_channel_costs_the_others_little() -> None:
    graph, exact = random_graph(outlier=50.0)
    quantize_statically(graph, [list(range(TOKENS))])
    ours = output(graph, np.arange(TOKENS)[None])[0]
    assert np.abs(ours - exact).mean() < 0.01 * np.abs(exact).max()


def test_no_neighbour_changes_a_result() -> None:
    graph, _ = random_graph()
    quantize_statically(graph, [list(range(10))])  # the others are larger than any observed
    together = output(graph, np.arange(TOKENS)[:, None])
    alone = np.concatenate([output(graph, np.array([[token]])) for token in range(TOKENS)])
    assert np.array_equal(together, alone)


def test_the_largest_sums_do_not_saturate() -> None:
    """All activations 255 and all weights 63: two products fill 16 bits nearly."""
    table = np.full((2, WIDTH), 1.0, np.float32)
    weights = np.ones((WIDTH, WIDTH), np.float32)
    graph = embedded_product(weights, table)
    quantize_statically(graph, [[0, 1]])
    assert output(graph, np.array([[0, 1]])) == pytest.approx(WIDTH, rel=1e-3)

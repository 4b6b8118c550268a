"""int8 is close to fp32, and in static int8 the other texts of a batch change no result."""

import logging
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from export.encoder.onnx_graph import OnnxGraph
from export.encoder.quantize import (
    BATCH_INVARIANT,
    activation_scale,
    quantize,
    quantize_statically,
    quantized_columns,
)
from tests.support.tiny.graphs import graph_of

WIDTH, TOKENS = 64, 50
VNNI = "vnni" in Path("/proc/cpuinfo").read_text()  # sums 8-bit products in 32 bits


@pytest.fixture
def fp32(tmp_path: Path) -> Path:
    """A graph that multiplies its input [n, 64] by a fixed matrix."""
    matrix = np.random.default_rng(0).standard_normal((WIDTH, WIDTH)).astype(np.float32)
    product = [helper.make_node("MatMul", ["x", "matrix"], ["y"])]
    model = graph_of(product, {"x": ["n", WIDTH]}, {"y": ["n", WIDTH]}, {"matrix": matrix})
    onnx.save(model, tmp_path / "fp32.onnx")
    return tmp_path / "fp32.onnx"


def output(model: str | bytes, **inputs: np.ndarray) -> np.ndarray:
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    return session.run(None, inputs)[0]


def test_none_copies_the_graph(fp32: Path, tmp_path: Path) -> None:
    quantize(fp32, tmp_path / "same.onnx", "none")
    assert (tmp_path / "same.onnx").read_bytes() == fp32.read_bytes()


def test_int8_is_a_third_of_the_size_and_close(fp32: Path, tmp_path: Path) -> None:
    target = tmp_path / "int8.onnx"
    quantize(fp32, target, "int8")
    assert target.stat().st_size < fp32.stat().st_size / 3
    x = np.random.default_rng(1).standard_normal((5, WIDTH)).astype(np.float32)
    exact, close = output(str(fp32), x=x), output(str(target), x=x)
    assert not np.array_equal(exact, close)
    (graphs,) = ReferenceEvaluator(str(target)).run(None, {"x": x})  # the same on every CPU
    assert graphs == pytest.approx(exact, abs=0.03 * float(np.abs(exact).max()))
    errors = np.abs(close - exact) / float(np.abs(exact).max())
    if VNNI:
        assert errors.max() < 0.03
    else:  # sums of two products saturate at 16 bits, which few sums reach
        assert np.mean(errors > 0.03) < 0.02
        assert errors.max() < 0.1


def test_an_int8_vector_depends_on_the_other_texts_of_its_batch(fp32: Path, tmp_path: Path) -> None:
    """Rows of a batch share one activation scale, so a large row makes small ones less precise."""
    target = tmp_path / "int8.onnx"
    quantize(fp32, target, "int8")
    small = np.full((1, WIDTH), 0.01, np.float32) * np.linspace(-1, 1, WIDTH, dtype=np.float32)
    alone = output(str(target), x=small)
    batch = np.concatenate([small, 100 * np.ones((1, WIDTH), np.float32)])
    in_batch = output(str(target), x=batch)
    assert not np.allclose(alone[0], in_batch[0], atol=1e-4)
    assert not BATCH_INVARIANT["int8"]
    assert BATCH_INVARIANT["none"]


def test_the_advice_to_preprocess_is_suppressed_only_while_quantizing(
    fp32: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    quantize(fp32, tmp_path / "int8.onnx", "int8")
    assert "pre-processing" not in caplog.text
    assert logging.getLogger().filters == []
    with pytest.raises(Exception, match="nowhere"):
        quantize(tmp_path / "nowhere.onnx", tmp_path / "x.onnx", "int8")
    assert logging.getLogger().filters == []


# Static int8 ----------------------------------------------------------------------------------


def embedded_product(weights: np.ndarray, table: np.ndarray) -> OnnxGraph:
    """A graph that looks token ids up in `table` [v, k] and multiplies by `weights` [k, n]."""
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["x"]),
        helper.make_node("MatMul", ["x", "weights"], ["y"]),
    ]
    model = graph_of(
        nodes,
        {"input_ids": ["n", "t"], "attention_mask": ["n", "t"]},
        {"y": ["n", "t", weights.shape[1]]},
        {"weights": weights, "table": table},
        input_ids=TensorProto.INT64,
        attention_mask=TensorProto.INT64,
    )
    return OnnxGraph(model)


def vectors(graph: OnnxGraph, ids: np.ndarray) -> np.ndarray:
    model = graph.model().SerializeToString()
    return output(model, input_ids=ids, attention_mask=np.ones_like(ids))


def random_graph(*, outlier: float = 1.0) -> tuple[OnnxGraph, np.ndarray]:
    """Return a graph of random weights and its products [v, n]; `outlier` scales one channel."""
    rng = np.random.default_rng(0)
    table = rng.standard_normal((TOKENS, WIDTH)).astype(np.float32)
    table[:, 3] *= outlier
    weights = rng.standard_normal((WIDTH, WIDTH)).astype(np.float32)
    return embedded_product(weights, table), table @ weights


def test_a_range_has_no_rare_values_and_starts_at_zero_if_all_are_positive() -> None:
    values = np.random.default_rng(0).laplace(size=200_000).astype(np.float32)
    scale, zero = activation_scale(values)
    assert scale < 0.95 * (values.max() - values.min()) / 255
    assert 100 < zero < 155
    scale, zero = activation_scale(np.linspace(0.5, 2.55, 1000, dtype=np.float32))
    assert (scale, zero) == (pytest.approx(0.01, rel=1e-3), 0)


def test_weights_have_seven_bits_and_a_scale_for_each_column() -> None:
    weights = np.array([[6.3, -0.5], [-3.1, 0.254]], np.float32)
    columns, scales = quantized_columns(weights)
    assert columns.tolist() == [[63, -63], [-31, 32]]
    assert scales == pytest.approx([0.1, 0.5 / 63])


def test_static_int8_is_close_and_a_quarter_of_the_size() -> None:
    graph, exact = random_graph()
    before = graph.model().ByteSize()
    quantize_statically(graph, [list(range(TOKENS))])
    ours = vectors(graph, np.arange(TOKENS)[None])[0]
    assert np.abs(ours - exact).max() < 0.03 * np.abs(exact).max()
    assert graph.model().ByteSize() < 0.35 * before
    graph, exact = random_graph(outlier=50.0)  # this channel costs the others little
    quantize_statically(graph, [list(range(TOKENS))])
    ours = vectors(graph, np.arange(TOKENS)[None])[0]
    assert np.abs(ours - exact).mean() < 0.005 * np.abs(exact).max()


def test_no_neighbour_changes_a_result() -> None:
    graph, _ = random_graph()
    quantize_statically(graph, [list(range(10))])  # calibration does not see the larger ones
    together = vectors(graph, np.arange(TOKENS)[:, None])
    alone = np.concatenate([vectors(graph, np.array([[token]])) for token in range(TOKENS)])
    assert np.array_equal(together, alone)


def test_the_largest_sums_do_not_saturate() -> None:
    """If all activations are 255 and all weights 63, two products nearly fill 16 bits."""
    table = np.full((2, WIDTH), 1.0, np.float32)
    weights = np.ones((WIDTH, WIDTH), np.float32)
    graph = embedded_product(weights, table)
    quantize_statically(graph, [[0, 1]])
    assert vectors(graph, np.array([[0, 1]])) == pytest.approx(WIDTH, rel=1e-3)

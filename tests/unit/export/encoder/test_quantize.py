"""Quantization: a small matrix product in int8 is close to that in fp32."""

import logging
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from export.encoder.quantize import QUANTIZATIONS, quantize

WIDTH = 64
VNNI = "vnni" in Path("/proc/cpuinfo").read_text()  # sums of 8-bit products have 32 bits


@pytest.fixture
def fp32(tmp_path: Path) -> Path:
    """A graph that multiplies its input [n, 64] by a fixed matrix."""
    matrix = np.random.default_rng(0).standard_normal((WIDTH, WIDTH)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "matrix"], ["y"])],
        "product",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", WIDTH])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", WIDTH])],
        [numpy_helper.from_array(matrix, "matrix")],
    )
    path = tmp_path / "fp32.onnx"
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path
    )
    return path


def output(path: Path, x: np.ndarray) -> np.ndarray:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})[0]


def test_none_copies_the_graph(fp32: Path, tmp_path: Path) -> None:
    quantize(fp32, tmp_path / "same.onnx", QUANTIZATIONS["none"])
    assert (tmp_path / "same.onnx").read_bytes() == fp32.read_bytes()


def test_int8_is_a_third_of_the_size_and_close(fp32: Path, tmp_path: Path) -> None:
    target = tmp_path / "int8.onnx"
    quantize(fp32, target, QUANTIZATIONS["int8"])
    assert target.stat().st_size < fp32.stat().st_size / 3
    x = np.random.default_rng(1).standard_normal((5, WIDTH)).astype(np.float32)
    exact, close = output(fp32, x), output(target, x)
    assert not np.array_equal(exact, close)
    (graphs,) = ReferenceEvaluator(str(target)).run(None, {"x": x})  # the same on every processor
    assert graphs == pytest.approx(exact, abs=0.03 * float(np.abs(exact).max()))
    errors = np.abs(close - exact) / float(np.abs(exact).max())
    if VNNI:
        assert errors.max() < 0.03
    else:  # sums of two products saturate at 16 bits; few sums are that large
        assert np.mean(errors > 0.03) < 0.02
        assert errors.max() < 0.1


def test_an_int8_vector_depends_on_the_other_texts_of_its_batch(fp32: Path, tmp_path: Path) -> None:
    """The batch shares one activation scale, so a large row makes a small one less precise."""
    target = tmp_path / "int8.onnx"
    quantize(fp32, target, QUANTIZATIONS["int8"])
    small = np.full((1, WIDTH), 0.01, np.float32) * np.linspace(-1, 1, WIDTH, dtype=np.float32)
    alone = output(target, small)
    in_batch = output(target, np.concatenate([small, 100 * np.ones((1, WIDTH), np.float32)]))
    assert not np.allclose(alone[0], in_batch[0], atol=1e-4)
    assert not QUANTIZATIONS["int8"].batch_invariant
    assert QUANTIZATIONS["none"].batch_invariant


def test_the_advice_to_preprocess_is_suppressed_only_while_quantizing(
    fp32: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    quantize(fp32, tmp_path / "int8.onnx", QUANTIZATIONS["int8"])
    assert "pre-processing" not in caplog.text
    assert logging.getLogger().filters == []
    with pytest.raises(Exception, match="nowhere"):
        quantize(tmp_path / "nowhere.onnx", tmp_path / "x.onnx", QUANTIZATIONS["int8"])
    assert logging.getLogger().filters == []

"""Graphs are opened on the chosen provider only, and run with bound buffers of a few shapes.

onnxruntime binds buffers on the CPU too, so the tests need no GPU.
"""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.core.encoding import onnx_session
from service.core.encoding.encoder import OnnxEncoder, encode
from service.core.encoding.onnx_session import (
    BucketedGraph,
    graph_inputs,
    open_session,
    require_provider,
)
from service.core.errors import BundleUnsupported, DeviceUnavailable
from service.core.types import Role
from tests.support.device.scan_device import use_stand_in
from tests.support.tiny.encoder import DIMENSION, tiny_facts, write_tiny_encoder

MAX_TOKENS = 20  # the longest bucket is shorter than the power of two
TEXTS = ["tent", "a much longer text about hiking boots", "x", "two words", "tent"]

tokens = st.lists(st.integers(0, 30), min_size=1, max_size=MAX_TOKENS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("encoder")
    write_tiny_encoder(folder)
    return folder


@pytest.fixture(scope="module")
def path(folder: Path) -> Path:
    return folder / "encoder.onnx"


def bucketed(session: Any) -> BucketedGraph:
    return BucketedGraph(session, memory="cpu", dimension=DIMENSION, max_tokens=MAX_TOKENS)


# Opening --------------------------------------------------------------------------------------


def test_the_cpu_is_used_and_nothing_else_that_is_installed(path: Path) -> None:
    """Even onnxruntime's CPU build contains other providers."""
    assert open_session(path).get_providers() == ["CPUExecutionProvider"]


@pytest.mark.skipif(
    "CUDAExecutionProvider" in onnxruntime.get_available_providers(), reason="it has CUDA"
)
def test_an_onnxruntime_without_cuda_is_refused_with_the_extra_that_has_it(path: Path) -> None:
    for refused in (lambda: require_provider("cuda"), lambda: open_session(path, "cuda")):
        with pytest.raises(DeviceUnavailable, match=r"CUDAExecutionProvider.*\.\[gpu\]"):
            refused()


def test_a_session_that_fell_back_to_the_cpu_is_refused(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """onnxruntime falls back if CUDA's libraries or the GPU are missing."""
    fallen_back = SimpleNamespace(
        get_available_providers=lambda: ["CUDAExecutionProvider", "CPUExecutionProvider"],
        preload_dlls=lambda: None,
        SessionOptions=SimpleNamespace,
        InferenceSession=lambda path, options, providers: SimpleNamespace(
            get_providers=lambda: ["CPUExecutionProvider"]
        ),
    )
    monkeypatch.setattr(onnx_session, "_onnxruntime", lambda: fallen_back)
    with pytest.raises(DeviceUnavailable, match=r"cannot start its CUDAExecutionProvider"):
        open_session(path, "cuda")


# Buckets --------------------------------------------------------------------------------------


@settings(max_examples=40)
@given(st.lists(st.lists(tokens, min_size=1, max_size=64), min_size=1, max_size=3))
def test_a_bucket_gives_the_vectors_of_the_graph(
    path: Path, batches: list[list[list[int]]]
) -> None:
    """Batches share their buffers, but no value of a batch is left in the next one."""
    session = open_session(path)
    graph = bucketed(session)
    results = [graph(batch) for batch in batches]
    for batch, vectors in zip(batches, results, strict=True):
        expected = session.run(None, graph_inputs(batch))[0]
        assert vectors.shape == (len(batch), DIMENSION)
        assert vectors == pytest.approx(expected, abs=1e-5)


def test_a_warm_graph_has_met_every_shape_and_makes_no_more_buffers(path: Path) -> None:
    session = open_session(path)
    made: list[Any] = []
    graph = bucketed(
        SimpleNamespace(
            io_binding=lambda: made.append(binding := session.io_binding()) or binding,
            run_with_iobinding=session.run_with_iobinding,
            get_outputs=session.get_outputs,
        )
    )
    assert graph.shapes[0] == (64, MAX_TOKENS)
    graph.warm_up()
    assert len(made) == len(graph.shapes) == 7 * 3
    for texts in (1, 3, 50, 64):
        for length in (1, 9, MAX_TOKENS):
            graph([[1] * length] * texts)
    assert len(made) == 7 * 3


def test_threads_do_not_share_a_buffer_at_a_time(path: Path) -> None:
    graph = bucketed(open_session(path))
    inputs = [[[number] * 4] * 3 for number in range(4)]
    expected = [graph(batch) for batch in inputs]
    with ThreadPoolExecutor(4) as pool:
        for number, vectors in enumerate(pool.map(graph, inputs * 100)):
            assert np.array_equal(vectors, expected[number % 4])


def test_an_encoder_on_a_gpu_runs_batches_within_the_tolerance(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_stand_in(monkeypatch)
    on_gpu = OnnxEncoder(folder, tiny_facts(), device="cuda")
    sizes: list[int] = []
    run = on_gpu.embed_batch
    monkeypatch.setattr(on_gpu, "embed_batch", lambda ids: (sizes.append(len(ids)), run(ids))[1])
    texts = TEXTS * 14
    vectors = encode(on_gpu, texts, role=Role.QUERY)
    assert sizes == [64, 6]
    on_cpu = encode(OnnxEncoder(folder, tiny_facts()), texts, role=Role.QUERY)
    assert vectors == pytest.approx(on_cpu, abs=1e-5)


@pytest.mark.parametrize("quantization", ["int8", "static-int8"])
def test_a_graph_in_int8_is_refused_with_the_option_that_exports_another(
    folder: Path, quantization: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_stand_in(monkeypatch)
    facts = tiny_facts(quantization=quantization)
    with pytest.raises(BundleUnsupported, match=rf"{quantization}, .*--quantize none"):
        OnnxEncoder(folder, facts, device="cuda")
    OnnxEncoder(folder, facts)

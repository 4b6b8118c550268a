"""A graph at few shapes with bound buffers, on onnxruntime's processor, which binds them, too."""

import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.core.encoding.bucketed_graph import BATCHES, BucketedGraph, bucket, lengths_up_to
from service.core.encoding.encoder import OnnxEncoder, encode
from service.core.encoding.graph_inputs import graph_inputs
from service.core.encoding.onnx_session import open_session
from service.core.errors import BundleUnsupported
from service.core.types import Role
from tests.support.device.scan_device import use_stand_in
from tests.support.tiny.encoder import DIMENSION, tiny_facts, write_tiny_encoder

MAX_TOKENS = 32
TEXTS = ["tent", "a much longer text about hiking boots", "x", "two words", "tent"]

tokens = st.lists(st.integers(0, 30), min_size=1, max_size=MAX_TOKENS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("encoder")
    write_tiny_encoder(folder)
    return folder


@pytest.fixture
def graph(folder: Path) -> BucketedGraph:
    session = open_session(folder / "encoder.onnx")
    return BucketedGraph(session, memory="cpu", dimension=DIMENSION, max_tokens=MAX_TOKENS)


def test_buckets_by_hand() -> None:
    assert [bucket(size, BATCHES) for size in (1, 2, 3, 33, 64)] == [1, 2, 4, 64, 64]
    assert lengths_up_to(32) == (8, 16, 32)
    assert lengths_up_to(40) == (8, 16, 32, 40)
    assert lengths_up_to(5) == (5,)
    with pytest.raises(ValueError, match="65 is more than the largest bucket, 64"):
        bucket(65, BATCHES)


def test_inputs_are_padded_to_the_bucket_and_rows_beyond_the_texts_hold_one_token() -> None:
    inputs = graph_inputs([[5, 6], [7]], (3, 4))
    assert inputs["input_ids"].tolist() == [[5, 6, 0, 0], [7, 0, 0, 0], [0, 0, 0, 0]]
    assert inputs["attention_mask"].tolist() == [[1, 1, 0, 0], [1, 0, 0, 0], [1, 0, 0, 0]]


@settings(max_examples=40)
@given(st.lists(st.lists(tokens, min_size=1, max_size=64), min_size=1, max_size=3))
def test_a_bucket_gives_the_vectors_of_the_graph(
    folder: Path, batches: list[list[list[int]]]
) -> None:
    """Batch after batch over the same buffers: nothing of one is left in the next."""
    session = open_session(folder / "encoder.onnx")
    graph = BucketedGraph(session, memory="cpu", dimension=DIMENSION, max_tokens=MAX_TOKENS)
    results = [graph(batch) for batch in batches]
    for batch, vectors in zip(batches, results, strict=True):
        expected = session.run(None, graph_inputs(batch))[0]
        assert vectors.shape == (len(batch), DIMENSION)
        assert vectors == pytest.approx(expected, abs=1e-5)


def test_a_warm_graph_has_met_every_shape_and_makes_no_more_buffers(
    graph: BucketedGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(graph.shapes) == 7 * 3
    assert graph.shapes[0] == (64, 32)
    graph.warm_up()
    monkeypatch.setattr(graph, "_bound", lambda shape: pytest.fail(f"{shape} was not warm"))
    for texts in (1, 3, 50, 64):
        for length in (1, 9, 32):
            graph([[1] * length] * texts)


def test_threads_do_not_share_a_buffer_at_a_time(graph: BucketedGraph) -> None:
    inputs = [[[number] * 4] * 3 for number in range(4)]
    expected = [graph(batch) for batch in inputs]
    wrong: list[int] = []

    def work(number: int) -> None:
        for _ in range(100):
            if not np.array_equal(graph(inputs[number]), expected[number]):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# The encoder over it ---------------------------------------------------------------------


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
    on_processor = encode(OnnxEncoder(folder, tiny_facts()), texts, role=Role.QUERY)
    assert vectors == pytest.approx(on_processor, abs=1e-5)


@pytest.mark.parametrize("quantization", ["int8", "static-int8"])
def test_a_graph_in_int8_is_refused_with_the_option_that_exports_another(
    folder: Path, quantization: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_stand_in(monkeypatch)
    facts = tiny_facts(quantization=quantization)
    with pytest.raises(BundleUnsupported, match=rf"{quantization}, .*--quantize none"):
        OnnxEncoder(folder, facts, device="cuda")
    OnnxEncoder(folder, facts)

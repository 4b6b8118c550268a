"""Graphs too large for one file are split during the export, but refused as its result."""

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from rich.console import Console  # noqa: E402

from export.encoder import onnx, onnx_graph  # noqa: E402
from export.encoder.export import EncoderOptions, export_encoder  # noqa: E402
from export.encoder.onnx_graph import OnnxGraph  # noqa: E402
from service.core.errors import InvalidInput  # noqa: E402
from tests.support.tiny.checkpoints import write_checkpoint  # noqa: E402
from tests.support.tiny.encoder import write_tiny_encoder  # noqa: E402
from tests.support.tiny.training import tiny_dataset  # noqa: E402
from training.models.torch_encoder import TorchEncoder, load_encoder  # noqa: E402


def exported(encoder: TorchEncoder, target: Path, *, quantization: str) -> set[str]:
    """Export an encoder; return the names of the files."""
    options = EncoderOptions(quantization=quantization, parity_sample=40, threads=1)
    export_encoder(encoder, tiny_dataset(), target, options=options, console=Console(quiet=True))
    return {path.name for path in target.iterdir()}


@pytest.fixture
def encoder(tmp_path: Path) -> TorchEncoder:
    return load_encoder(str(write_checkpoint(tmp_path)))


@pytest.fixture
def limit(encoder: TorchEncoder, monkeypatch: pytest.MonkeyPatch) -> int:
    """Limit a file to half of the encoder's fp32 size, instead of 2 GiB."""
    limit = encoder.size // 2
    for module in (onnx, onnx_graph):
        monkeypatch.setattr(module, "LARGEST_FILE", limit)
    return limit


def test_a_large_encoder_is_exported_in_int8(
    encoder: TorchEncoder, limit: int, tmp_path: Path
) -> None:
    files = exported(encoder, tmp_path / "int8", quantization="static-int8")
    assert files == {"encoder.onnx", "tokenizer.json", "encoder.json", "README.md"}


@pytest.mark.parametrize("quantization", ["none", "int8"])
def test_a_large_encoder_is_refused_before_it_is_traced(
    encoder: TorchEncoder,
    limit: int,
    quantization: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr("export.encoder.export.trace")
    with pytest.raises(InvalidInput, match="a file of ONNX holds 2 GiB: export it with --quantize"):
        exported(encoder, tmp_path / "large", quantization=quantization)
    assert not (tmp_path / "large").exists()


def test_a_single_weight_that_no_file_holds_is_named(
    encoder: TorchEncoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnx, "LARGEST_FILE", 1000)
    with pytest.raises(InvalidInput, match=r"a weight of encoder .* holds 2 GiB in one value"):
        onnx.trace(encoder, tmp_path / "encoder.onnx")


def test_a_split_graph_is_read_again_and_never_appended_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tiny_encoder(tmp_path)
    graph = OnnxGraph.read(tmp_path / "encoder.onnx")
    letters = graph.constant("letters")
    monkeypatch.setattr(onnx_graph, "LARGEST_FILE", 1000)
    sizes = set()
    for _ in range(2):
        graph.save(tmp_path / "split.onnx", may_split=True)
        sizes.add((tmp_path / "split.onnx.data").stat().st_size)
        assert np.array_equal(OnnxGraph.read(tmp_path / "split.onnx").constant("letters"), letters)
    assert len(sizes) == 1
    with pytest.raises(InvalidInput, match="a file of ONNX holds 2 GiB"):
        graph.save(tmp_path / "one.onnx")

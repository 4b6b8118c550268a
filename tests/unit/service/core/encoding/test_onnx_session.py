"""Opening graphs: only the provider of the setting is used, and one that is missing is refused."""

from pathlib import Path
from types import SimpleNamespace

import onnxruntime
import pytest

from service.core.encoding import onnx_session
from service.core.encoding.onnx_session import open_session, require_provider
from service.core.errors import BundleAltered, DeviceUnavailable
from tests.support.tiny.encoder import write_tiny_encoder


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    write_tiny_encoder(tmp_path)
    return tmp_path / "encoder.onnx"


def test_the_processor_is_used_and_nothing_else_that_is_installed(graph: Path) -> None:
    """onnxruntime has other providers beside it even in its build for the processor."""
    assert open_session(graph).get_providers() == ["CPUExecutionProvider"]


@pytest.mark.skipif(
    "CUDAExecutionProvider" in onnxruntime.get_available_providers(), reason="it has CUDA"
)
def test_an_onnxruntime_without_cuda_is_refused_with_the_extra_that_has_it(graph: Path) -> None:
    for refused in (lambda: require_provider("cuda"), lambda: open_session(graph, "cuda")):
        with pytest.raises(DeviceUnavailable, match=r"CUDAExecutionProvider.*keymatch\[gpu\]"):
            refused()


def test_a_session_that_fell_back_to_the_processor_is_refused(
    graph: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As onnxruntime does where CUDA's libraries or the GPU are missing."""
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
        open_session(graph, "cuda")


def test_a_file_that_is_no_graph_is_named(tmp_path: Path) -> None:
    (tmp_path / "g.onnx").write_bytes(b"?")
    with pytest.raises(BundleAltered, match=r"g\.onnx"):
        open_session(tmp_path / "g.onnx")

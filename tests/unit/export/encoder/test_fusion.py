"""The graph of OAK's fusion: as torch computes it, for any number of queries and items."""

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from onnxruntime import InferenceSession  # noqa: E402

from export.encoder.fusion import check_fusion, export_fusion  # noqa: E402
from service.core.errors import ParityError  # noqa: E402
from training.systems.oak.fusion import Fusion  # noqa: E402

DIMENSION = 8


def moved(seed: int) -> Fusion:
    """A fusion whose weights have moved."""
    torch.manual_seed(seed)
    fusion = Fusion(DIMENSION, heads=2, hidden=16)
    with torch.no_grad():
        for parameter in fusion.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return fusion.eval()


@pytest.mark.parametrize(("queries", "items"), [(1, 1), (1, 5), (7, 2), (3, 16)])
def test_the_graph_takes_any_number_of_queries_and_items(
    tmp_path: Path, queries: int, items: int
) -> None:
    fusion, rng = moved(0), np.random.default_rng(1)
    export_fusion(fusion, tmp_path / "fusion.onnx")
    session = InferenceSession(str(tmp_path / "fusion.onnx"), providers=["CPUExecutionProvider"])
    inputs = {
        "query": rng.standard_normal((queries, DIMENSION)).astype(np.float32),
        "items": rng.standard_normal((queries, items, DIMENSION)).astype(np.float32),
        "mask": rng.random((queries, items)) < 0.6,
    }
    [fused] = session.run(["fused"], inputs)
    with torch.no_grad():
        expected = fusion(*(torch.from_numpy(value) for value in inputs.values()))
    np.testing.assert_allclose(fused, expected.numpy(), atol=1e-5)
    without = ~inputs["mask"].any(axis=1)
    np.testing.assert_array_equal(fused[without], inputs["query"][without])


def test_another_fusions_graph_is_refused(tmp_path: Path) -> None:
    export_fusion(moved(0), tmp_path / "fusion.onnx")
    with pytest.raises(ParityError, match="fusion differs from torch by"):
        check_fusion(moved(1), tmp_path / "fusion.onnx")

"""The ONNX graphs of OAK's fusion compute the same as torch, for any number of items."""

from pathlib import Path

import numpy as np
import pytest
import torch

from export.encoder.fusion import check_fusion, export_fusion
from service.core.errors import ParityError
from service.core.items.fusion import OnnxFusion
from tests.support.vectors import DIMENSION, units
from training.systems.oak.fusion import Fusion


def moved(seed: int) -> Fusion:
    """Return a fusion with changed weights, as after training."""
    torch.manual_seed(seed)
    fusion = Fusion(DIMENSION, heads=2, hidden=16)
    with torch.no_grad():
        for parameter in fusion.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return fusion.eval()


@pytest.mark.parametrize("items", [1, 2, 5, 16])
def test_both_graphs_together_are_the_layer(tmp_path: Path, items: int) -> None:
    fusion = moved(0)
    export_fusion(fusion, tmp_path)
    [query], values = units(1, seed=1), units(items, seed=2).astype(np.float16)
    exported = OnnxFusion(tmp_path)
    fused = exported.fuse(query, exported.project(values))
    with torch.no_grad():
        attended = torch.from_numpy(values.astype(np.float32))[None]
        mask = torch.ones(1, items, dtype=bool)
        expected = fusion(torch.from_numpy(query)[None], attended, mask)[0].numpy()
    np.testing.assert_allclose(fused, expected, atol=5e-3)  # logits up to 20 are made from fp16


def test_bits_change_neither_without_items_nor_beside_others(tmp_path: Path) -> None:
    export_fusion(moved(0), tmp_path)
    [query], exported = units(1, seed=1), OnnxFusion(tmp_path)
    none = exported.project(np.zeros((0, DIMENSION), np.float16))
    assert none.shape == (0, 2, DIMENSION)
    assert np.array_equal(exported.fuse(query, none), query)
    values = units(9, seed=3).astype(np.float16)
    alone = [exported.project(values[row : row + 1]) for row in range(len(values))]
    assert np.array_equal(np.concatenate(alone), exported.project(values))


def test_another_fusions_graphs_are_refused(tmp_path: Path) -> None:
    export_fusion(moved(0), tmp_path)
    with pytest.raises(ParityError, match="fusion differ from torch by"):
        check_fusion(moved(1), tmp_path)

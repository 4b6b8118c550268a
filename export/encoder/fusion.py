"""Export an OAK checkpoint's fusion as ONNX graphs, and its item bank's residuals.

One graph projects items to what queries attend to; the other fuses a query with projected items.

Shapes: M items, m items of a query, d dimensions.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from export.encoder.onnx import trace_script
from export.exported_encoder import FUSION, RESIDUALS, ItemMemoryFacts, digest_of_items
from service.core.bundle.item_files import FUSE, PROJECT
from service.core.errors import ParityError
from service.core.items.fusion import OnnxFusion
from service.core.types import Floats, Halves
from training.datasets.dataset import Dataset
from training.systems.oak.fusion import Fusion
from training.systems.oak.memory import has_item_memory, read_fusion, read_residuals

TOLERANCE = 1e-4  # per component of a vector; graph and torch both compute in fp32
_ITEM_TOLERANCE = 1e-3  # relative; projected items are rounded to fp16
_COMPARED = 16  # random queries with each number of items
_MOST_ITEMS = 6


def export_items(
    checkpoint: Path, dataset: Dataset, folder: Path, *, dimension: int
) -> ItemMemoryFacts | None:
    """Write `items/` into an exported encoder's folder; return None without an item memory.

    Raises `InvalidInput` and `InvalidData` for a data set with other items than the run's, and
    `ParityError` if graph and torch differ.
    """
    if not has_item_memory(checkpoint):
        return None
    digest = digest_of_items(dataset)
    assert dataset.metadata is not None
    items = len(dataset.metadata)
    residuals = read_residuals(checkpoint, items=items, dimension=dimension)
    fusion, choices = read_fusion(checkpoint, dimension=dimension)
    (folder / FUSION).mkdir()
    export_fusion(fusion, folder / FUSION)
    np.save(folder / RESIDUALS, residuals.astype(np.float16))
    return ItemMemoryFacts(items=items, attended=choices.attended, digest=digest)


class _Part(nn.Module):  # type: ignore[misc]
    """A network that computes one function of a fusion."""

    def __init__(self, fusion: Fusion, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.fusion, self.function = fusion, function

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.function(*inputs)


def export_fusion(fusion: Fusion, folder: Path) -> None:
    """Write the two graphs, for any number of items, into a folder that exists.

    Raises `ParityError` if they differ from torch.
    """
    dimension, axes = fusion.out.out_features, {0: "items"}
    query, values = torch.randn(1, dimension), torch.randn(3, dimension)
    project = _Part(fusion, fusion.project)  # computed once per item, when it is stored
    both = {"values": axes, "projected": axes}
    trace_script(project, {"values": values}, "projected", folder / PROJECT, axes=both)
    fuse = _Part(fusion, lambda query, items: fusion.read(query, items[None]))
    example = {"query": query, "items": torch.randn(3, 2, dimension)}
    trace_script(fuse, example, "fused", folder / FUSE, axes={"items": axes})
    check_fusion(fusion, folder)


def check_fusion(fusion: Fusion, folder: Path) -> None:
    """Compare the graphs with torch on random queries and items. Raises `ParityError`."""
    exported, rng = OnnxFusion(folder), np.random.default_rng(0)
    worst, worst_item = 0.0, 0.0
    for items in [*range(1, _MOST_ITEMS + 1)] * _COMPARED:
        vectors = rng.standard_normal((1 + items, fusion.out.out_features)).astype(np.float32)
        vectors /= np.linalg.norm(vectors, axis=-1, keepdims=True)
        query, values = vectors[0], vectors[1:].astype(np.float16)
        projected = exported.project(values)
        expected_items, expected = _by_torch(fusion, query, values, projected)
        apart = np.abs(expected_items - projected) / np.maximum(np.abs(expected_items), 1.0)
        worst_item = max(worst_item, float(apart.max()))
        worst = max(worst, float(np.abs(expected - exported.fuse(query, projected)).max()))
    if worst > TOLERANCE or worst_item > _ITEM_TOLERANCE:
        raise ParityError(
            f"the graphs of OAK's fusion differ from torch by {worst:.2g} in a fused vector, and by"
            f" {worst_item:.2g} in what is read of an item"
        )


def _by_torch(
    fusion: Fusion, query: Floats, values: Halves, projected: Halves
) -> tuple[Floats, Floats]:
    """With torch, project values [m, d] to [m, 2, d], and fuse `query` with `projected`."""
    with torch.no_grad():
        items = fusion.project(torch.from_numpy(values.astype(np.float32)))
        read = torch.from_numpy(projected.astype(np.float32))[None]
        fused = fusion.read(torch.from_numpy(query)[None], read)
    return items.numpy(), fused[0].numpy()

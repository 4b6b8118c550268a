"""From an OAK checkpoint to the graphs of its fusion, and the bank's residuals.

One graph computes what queries read of an item, the other one fuses a query with what it reads.

Shapes: M items, m items of a query, d dimensions.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from export.encoder.onnx import quiet
from export.item_files import FUSION, RESIDUALS, ItemMemoryFacts, digest_of_items
from service.core.bundle.item_files import FORMAT, FUSE, PROJECT
from service.core.errors import ParityError
from service.core.items.fusion import OnnxFusion
from service.core.types import Floats, Halves
from training.checkpoints.item_memory import has_item_memory, read_residuals
from training.datasets.dataset import Dataset
from training.systems.oak.checkpoint import read_fusion
from training.systems.oak.fusion import Fusion

TOLERANCE = 1e-4  # per component of a vector; graph and torch both compute in fp32
_ITEM_TOLERANCE = 1e-3  # relative; what is read of an item is rounded to fp16
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
    return ItemMemoryFacts(items=items, attended=choices.attended, digest=digest, format=FORMAT)


def export_fusion(fusion: Fusion, folder: Path) -> None:
    """Write the fusion's two graphs; raises `ParityError` if they and torch differ."""
    trace_fusion(fusion, folder)
    check_fusion(fusion, folder)


class _Project(nn.Module):  # type: ignore[misc]
    """What is computed when an item is written."""

    def __init__(self, fusion: Fusion) -> None:
        super().__init__()
        self.fusion = fusion

    def forward(self, values: Tensor) -> Tensor:
        """The projected items [m, 2, d] of values [m, d]."""
        return self.fusion.project(values)


class _Fuse(nn.Module):  # type: ignore[misc]
    """What is computed for a query."""

    def __init__(self, fusion: Fusion) -> None:
        super().__init__()
        self.fusion = fusion

    def forward(self, query: Tensor, items: Tensor) -> Tensor:
        """The fused vector [1, d] of a query [1, d] with projected items [m, 2, d]."""
        return self.fusion.read(query, items[None])


def trace_fusion(fusion: Fusion, folder: Path) -> None:
    """Write the two graphs, for any number of items, into a folder that exists."""
    dimension = fusion.out.out_features
    query, values = torch.randn(1, dimension), torch.randn(3, dimension)
    items = torch.randn(3, 2, dimension)
    _trace(_Project(fusion), {"values": values}, "projected", folder / PROJECT)
    _trace(_Fuse(fusion), {"query": query, "items": items}, "fused", folder / FUSE)


def _trace(network: nn.Module, example: dict[str, Tensor], output: str, target: Path) -> None:
    """Write a network's graph; all but a query have any number of rows."""
    axes = {name: {0: "items"} for name in (*example, output) if name not in ("query", "fused")}
    with quiet():
        torch.onnx.export(
            network.eval(),
            tuple(example.values()),
            str(target),
            input_names=list(example),
            output_names=[output],
            dynamic_axes=axes,
            opset_version=17,
            dynamo=False,
        )


def check_fusion(fusion: Fusion, folder: Path) -> None:
    """Compare the graphs with torch on random queries with one to six items.

    Raises `ParityError`.
    """
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
    """Items [m, 2, d] of values [m, d], and a query [d] fused with projected items, by torch."""
    with torch.no_grad():
        items = fusion.project(torch.from_numpy(values.astype(np.float32)))
        read = torch.from_numpy(projected.astype(np.float32))[None]
        fused = fusion.read(torch.from_numpy(query)[None], read)
    return items.numpy(), fused[0].numpy()

"""From an OAK checkpoint to the graph that fuses a query with its items, and the bank's residuals.

Shapes: n queries, M items, m items of a query, d dimensions.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from export.encoder.onnx import quiet
from export.item_files import FUSION, RESIDUALS, ItemMemoryFacts, digest_of_items
from service.core.errors import ParityError
from service.core.items.fusion import OnnxFusion
from training.checkpoints.item_memory import has_item_memory, read_residuals
from training.datasets.dataset import Dataset
from training.systems.oak.checkpoint import read_fusion
from training.systems.oak.fusion import Fusion

INPUTS = ("query", "items", "mask")  # [n, d], [n, m, d], [n, m] of bool
OUTPUT = "fused"  # [n, d]
TOLERANCE = 1e-4  # per component of a vector; graph and torch both compute in fp32
_COMPARED = 64  # random queries
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
    (folder / FUSION).parent.mkdir()
    export_fusion(fusion, folder / FUSION)
    np.save(folder / RESIDUALS, residuals.astype(np.float16))
    return ItemMemoryFacts(items=items, attended=choices.attended, digest=digest)


def export_fusion(fusion: Fusion, target: Path) -> None:
    """Write the fusion's ONNX graph; raises `ParityError` if graph and torch differ."""
    trace_fusion(fusion, target)
    check_fusion(fusion, target)


def trace_fusion(fusion: Fusion, target: Path) -> None:
    """Write the graph for any number of queries and of items a query."""
    dimension = fusion.out.out_features
    example = (
        torch.randn(2, dimension),
        torch.randn(2, 3, dimension),
        torch.tensor([[True, True, False], [False] * 3]),
    )
    axes = {0: "queries"}
    with quiet():
        torch.onnx.export(
            fusion.eval(),
            example,
            str(target),
            input_names=list(INPUTS),
            output_names=[OUTPUT],
            dynamic_axes={
                "query": axes,
                "items": {0: "queries", 1: "items"},
                "mask": {0: "queries", 1: "items"},
                OUTPUT: axes,
            },
            opset_version=17,
            dynamo=False,
        )


def check_fusion(fusion: Fusion, graph: Path) -> None:
    """Compare the graph with torch on random queries with none to six items.

    Raises `ParityError`.
    """
    exported = OnnxFusion(graph)
    rng, dimension = np.random.default_rng(0), fusion.out.out_features
    worst = 0.0
    for items in range(1, _MOST_ITEMS + 1):
        queries, bank = (
            rng.standard_normal(shape).astype(np.float32)
            for shape in ((_COMPARED, dimension), (_COMPARED, items, dimension))
        )
        queries /= np.linalg.norm(queries, axis=-1, keepdims=True)
        bank /= np.linalg.norm(bank, axis=-1, keepdims=True)
        mask = np.arange(items) < rng.integers(0, items + 1, (_COMPARED, 1))
        inputs = (queries, bank, mask)
        with torch.no_grad():
            expected = fusion(*(torch.from_numpy(part) for part in inputs)).numpy()
        worst = max(worst, float(np.abs(expected - exported.fuse(*inputs)).max()))
    if worst > TOLERANCE:
        raise ParityError(f"the graph of OAK's fusion differs from torch by {worst:.2g}")

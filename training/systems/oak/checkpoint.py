"""OAK's item memory to and from a checkpoint's files (`training.checkpoints.item_memory`).

Shapes: M items, d dimensions.
"""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from service.core.errors import InvalidData
from service.core.types import Floats
from training.checkpoints.item_memory import (
    FUSION,
    FUSION_WEIGHTS,
    ITEMS,
    RESIDUALS,
    FusionChoices,
    read_fusion_choices,
    read_residuals,
    write_fusion_choices,
)
from training.systems.oak.fusion import Fusion
from training.systems.oak.memory import ItemVectors


def write_item_memory(folder: Path, fusion: Fusion, residuals: Tensor, *, attended: int) -> None:
    """Write the fusion and what the bank adds to the items' texts into a checkpoint's folder."""
    weights = {name: value.detach().cpu() for name, value in fusion.state_dict().items()}
    save_file(weights, folder / FUSION_WEIGHTS)
    save_file({RESIDUALS: residuals.detach().cpu()}, folder / ITEMS)
    hidden = fusion.widen.out_features
    write_fusion_choices(
        folder, FusionChoices(attended=attended, heads=fusion.heads, hidden=hidden)
    )


def read_fusion(folder: Path, *, dimension: int) -> tuple[Fusion, FusionChoices]:
    """The fusion of a checkpoint; raises `InvalidData` where its files do not fit each other."""
    choices, path = read_fusion_choices(folder), folder / FUSION_WEIGHTS
    fusion = Fusion(dimension, heads=choices.heads, hidden=choices.hidden)
    try:
        fusion.load_state_dict(load_file(path))
    except (OSError, SafetensorError, RuntimeError) as error:
        raise InvalidData(path, f"does not fit {FUSION} and the encoder: {error}") from error
    return fusion.eval(), choices


def read_item_memory(folder: Path, items: Floats) -> ItemVectors:
    """The item memory of a checkpoint, from its encoder's vectors of the items' texts [M, d].

    Raises `InvalidData` where the files do not fit each other or these items.
    """
    count, dimension = items.shape
    residuals = read_residuals(folder, items=count, dimension=dimension)
    fusion, choices = read_fusion(folder, dimension=dimension)
    return ItemVectors(
        keys=items, values=items + residuals, attended=choices.attended, fusion=fusion
    )

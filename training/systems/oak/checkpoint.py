"""The item memory of an OAK checkpoint: what was learned beside the encoder.

| file                  | content                                                          |
|-----------------------|------------------------------------------------------------------|
| `fusion.json`         | how many items a query attends to; heads, width of the fusion    |
| `fusion.safetensors`  | the fusion's weights                                             |
| `items.safetensors`   | `residuals` [M, d]: the bank's vectors less those of the texts   |

The items' texts are the data set's; keys and bank follow from them by the checkpoint's encoder.
"""

from __future__ import annotations

from pathlib import Path

import orjson
from safetensors.torch import load_file, save_file
from torch import Tensor

from service.core.errors import InvalidData
from service.core.files.atomic import write_file
from service.core.types import Floats
from training.systems.oak.fusion import Fusion
from training.systems.oak.memory import ItemVectors

FUSION, FUSION_WEIGHTS, RESIDUALS = "fusion.json", "fusion.safetensors", "items.safetensors"
_RESIDUALS = "residuals"


def write_item_memory(folder: Path, fusion: Fusion, residuals: Tensor, *, attended: int) -> None:
    """Write the fusion and what the bank adds to the items' texts into a checkpoint's folder."""
    weights = {name: value.detach().cpu() for name, value in fusion.state_dict().items()}
    save_file(weights, folder / FUSION_WEIGHTS)
    save_file({_RESIDUALS: residuals.detach().cpu()}, folder / RESIDUALS)
    facts = {"attended": attended, "heads": fusion.heads, "hidden": fusion.widen.out_features}
    write_file(folder / FUSION, orjson.dumps(facts, option=orjson.OPT_INDENT_2) + b"\n")


def has_item_memory(folder: Path) -> bool:
    """Whether a checkpoint's queries attend to metadata items."""
    return (folder / FUSION).is_file()


def read_item_memory(folder: Path, items: Floats) -> ItemVectors:
    """The item memory of a checkpoint, from its encoder's vectors of the items' texts [M, d].

    Raises `InvalidData` where the files do not fit each other or these items.
    """
    facts = orjson.loads((folder / FUSION).read_bytes())
    residuals = load_file(folder / RESIDUALS)[_RESIDUALS].numpy()
    if residuals.shape != items.shape:
        raise InvalidData(
            folder / RESIDUALS,
            f"has shape {list(residuals.shape)}, but the data set's items with this encoder have"
            f" {list(items.shape)}; take the data set of the run",
        )
    fusion = Fusion(items.shape[1], heads=facts["heads"], hidden=facts["hidden"])
    try:
        fusion.load_state_dict(load_file(folder / FUSION_WEIGHTS))
    except RuntimeError as error:
        raise InvalidData(folder / FUSION_WEIGHTS, f"does not fit {FUSION}: {error}") from error
    return ItemVectors(
        keys=items, values=items + residuals, attended=facts["attended"], fusion=fusion
    )

"""An OAK checkpoint's item memory: the fusion, and the learned part of the items' bank vectors.

| file                  | content                                                          |
|-----------------------|------------------------------------------------------------------|
| `fusion.json`         | the number of attended items; heads and width of the fusion      |
| `fusion.safetensors`  | the fusion's weights                                             |
| `items.safetensors`   | `residuals` [M, d]: bank vectors minus the vectors of the texts  |

The items' texts are in the data set. The checkpoint's encoder computes keys and bank from them. All
but the weights are read without torch.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import orjson
from pydantic.dataclasses import dataclass
from safetensors import SafetensorError
from safetensors.numpy import load_file

from service.core.config import STRICT, Count, parse
from service.core.errors import InvalidData
from service.core.files.atomic import write_file
from service.core.types import Floats

FUSION, FUSION_WEIGHTS, ITEMS = "fusion.json", "fusion.safetensors", "items.safetensors"
RESIDUALS = "residuals"


@dataclass(frozen=True, kw_only=True, config=STRICT)
class FusionChoices:
    """A query attends to `attended` items, in `heads` heads; `hidden` is the layer's width."""

    attended: Count
    heads: Count
    hidden: Count


def has_item_memory(folder: Path) -> bool:
    """Whether a checkpoint's queries attend to metadata items."""
    return (folder / FUSION).is_file()


def write_fusion_choices(folder: Path, choices: FusionChoices) -> None:
    """Write the fusion's sizes into a checkpoint's folder."""
    write_file(folder / FUSION, orjson.dumps(asdict(choices), option=orjson.OPT_INDENT_2) + b"\n")


def read_fusion_choices(folder: Path) -> FusionChoices:
    """Read the fusion's sizes; raises `InvalidData` for a damaged file."""
    try:
        document = orjson.loads((folder / FUSION).read_bytes())
    except orjson.JSONDecodeError as error:
        raise InvalidData(folder / FUSION, f"is not what `train` writes: {error}") from error
    return parse(FusionChoices, document, source=str(folder / FUSION))


def read_residuals(folder: Path, *, items: int, dimension: int) -> Floats:
    """Return the bank vectors minus those of the texts, [M, d]; `InvalidData` for other items."""
    path = folder / ITEMS
    try:
        residuals: Floats = load_file(path)[RESIDUALS]
    except (OSError, SafetensorError, KeyError) as error:
        raise InvalidData(path, f"cannot be read: {error}") from error
    if residuals.shape != (items, dimension):
        expected = f"the data set's items with this encoder have {[items, dimension]}"
        shape = f"has shape {list(residuals.shape)}, but {expected}"
        raise InvalidData(path, f"{shape}; take the data set of the run")
    return residuals

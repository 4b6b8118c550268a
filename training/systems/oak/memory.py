"""A trained memory of metadata items: looks up a query's items and fuses the query with them.

| file of a checkpoint  | content                                                          |
|-----------------------|------------------------------------------------------------------|
| `fusion.json`         | the number of attended items; heads and width of the fusion      |
| `fusion.safetensors`  | the fusion's weights                                             |
| `items.safetensors`   | `residuals` [M, d]: bank vectors minus the vectors of the texts  |

The items' texts are in the data set. The checkpoint's encoder computes keys and bank from them.

Shapes: n queries, M items, m items of a query, d dimensions.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from pydantic.dataclasses import dataclass as checked_dataclass
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from service.core.config import STRICT, Count, parse
from service.core.errors import InvalidData
from service.core.types import Floats, Rows
from training.datasets.metadata_links import NO_ITEM
from training.documents import read_json, write_json
from training.systems.oak.fusion import Fusion

FUSION, FUSION_WEIGHTS, ITEMS = "fusion.json", "fusion.safetensors", "items.safetensors"
RESIDUALS = "residuals"
_CHUNK = 4_096  # queries that are compared or fused at once


@checked_dataclass(frozen=True, kw_only=True, config=STRICT)
class FusionChoices:
    """A query attends to `attended` items, in `heads` heads; `hidden` is the layer's width."""

    attended: Count
    heads: Count
    hidden: Count


@dataclass(frozen=True, kw_only=True, eq=False)
class ItemVectors:
    """The items' keys, by which queries find them, and values, which queries are fused with."""

    keys: Floats  # [M, d] unit vectors of the items' texts
    values: Floats  # [M, d] the bank vectors: keys plus learned residuals
    attended: int  # m
    fusion: Fusion

    def predicted(self, queries: Floats) -> Rows:
        """Return the places [n, m] of the m items that are most similar to each query [n, d]."""
        return nearest_items(queries, self.keys, count=self.attended)

    def fused(self, queries: Floats, places: Rows | None = None) -> Floats:
        """Return queries [n, d] fused with the items at `places` [n, m], by default predicted."""
        places = self.predicted(queries) if places is None else places
        device = self.fusion.scale.device
        fused, training = np.empty_like(queries), self.fusion.training
        self.fusion.eval()
        with torch.no_grad():
            for start in range(0, len(queries), _CHUNK):
                cut = slice(start, start + _CHUNK)
                inputs = (queries[cut], self.values[places[cut]], places[cut] != NO_ITEM)
                tensors = (torch.from_numpy(np.ascontiguousarray(part)) for part in inputs)
                fused[cut] = self.fusion(*(part.to(device) for part in tensors)).cpu().numpy()
        self.fusion.train(training)
        return fused


def nearest_items(queries: Floats, keys: Floats, *, count: int) -> Rows:
    """Return the places [n, m] of the keys [M, d] most similar to queries [n, d], the best first.

    Among equally similar items the first wins. If M is smaller than m, `NO_ITEM` pads the places.
    """
    places = np.full((len(queries), count), NO_ITEM, np.int64)
    found = min(count, len(keys))
    for start in range(0, len(queries), _CHUNK):
        similarities = queries[start : start + _CHUNK] @ keys.T
        places[start : start + _CHUNK, :found] = _best(similarities, count=found)
    return places


def _best(similarities: Floats, *, count: int) -> Rows:
    """Return the places of the `count` largest values per row [n, M], descending, ties by place."""
    if not count:
        return np.zeros((len(similarities), 0), np.int64)
    cut = similarities.shape[1] - count
    last = np.partition(similarities, cut, axis=1)[:, cut, None]  # [n, 1], the `count`-th largest
    above, equal = similarities > last, similarities == last
    missing = count - above.sum(axis=1, keepdims=True)
    chosen = above | (equal & (equal.cumsum(axis=1) <= missing))
    places = np.nonzero(chosen)[1].reshape(-1, count)  # ascending
    order = np.argsort(-np.take_along_axis(similarities, places, axis=1), axis=1, kind="stable")
    return np.take_along_axis(places, order, axis=1)


def has_item_memory(folder: Path) -> bool:
    """Whether a checkpoint's queries attend to metadata items."""
    return (folder / FUSION).is_file()


def write_item_memory(folder: Path, fusion: Fusion, residuals: Tensor, *, attended: int) -> None:
    """Write the fusion, and the bank's learned residuals, into a checkpoint's folder."""
    weights = {name: value.detach().cpu() for name, value in fusion.state_dict().items()}
    save_file(weights, folder / FUSION_WEIGHTS)
    save_file({RESIDUALS: residuals.detach().cpu()}, folder / ITEMS)
    hidden = fusion.widen.out_features
    choices = FusionChoices(attended=attended, heads=fusion.heads, hidden=hidden)
    write_json(folder / FUSION, asdict(choices))


def read_fusion(folder: Path, *, dimension: int) -> tuple[Fusion, FusionChoices]:
    """Read a checkpoint's fusion; `InvalidData` for files that are damaged or do not fit."""
    choices = parse(FusionChoices, read_json(folder / FUSION), source=str(folder / FUSION))
    path = folder / FUSION_WEIGHTS
    fusion = Fusion(dimension, heads=choices.heads, hidden=choices.hidden)
    try:
        fusion.load_state_dict(load_file(path))
    except (OSError, SafetensorError, RuntimeError) as error:
        raise InvalidData(path, f"does not fit {FUSION} and the encoder: {error}") from error
    return fusion.eval(), choices


def read_residuals(folder: Path, *, items: int, dimension: int) -> Floats:
    """Return the bank vectors minus those of the texts, [M, d]; `InvalidData` for other items."""
    path = folder / ITEMS
    try:
        residuals: Floats = load_file(path)[RESIDUALS].numpy()
    except (OSError, SafetensorError, KeyError) as error:
        raise InvalidData(path, f"cannot be read: {error}") from error
    if residuals.shape != (items, dimension):
        expected = f"the data set's items with this encoder have {[items, dimension]}"
        shape = f"has shape {list(residuals.shape)}, but {expected}"
        raise InvalidData(path, f"{shape}; take the data set of the run")
    return residuals


def read_item_memory(folder: Path, items: Floats) -> ItemVectors:
    """Read a checkpoint's item memory, given its encoder's vectors of the items' texts [M, d].

    Raises `InvalidData` if the files do not fit each other or these items.
    """
    count, dimension = items.shape
    residuals = read_residuals(folder, items=count, dimension=dimension)
    fusion, choices = read_fusion(folder, dimension=dimension)
    return ItemVectors(
        keys=items, values=items + residuals, attended=choices.attended, fusion=fusion
    )

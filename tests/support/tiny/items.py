"""An item memory for tiny bundles; its fusion is the normalized sum of query and items.

An item is projected to [key; value]. Both are the item's vector, and the fusion ignores the key.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from onnx import helper, save_model

from service.core.bundle import item_files
from service.core.bundle.item_files import FUSE, PROJECT, ItemFiles
from service.core.bundle.manifest import ItemFacts
from service.core.encoding.encoder import Encoder, encode
from service.core.files import text_store
from service.core.files.text_store import TextStore
from service.core.types import Halves, Role
from tests.support.tiny.encoder import DIMENSION
from tests.support.tiny.graphs import graph_of

ITEMS = {"camp": "camping", "feet": "footwear", "light": "lamp light", "water": "water drinks"}


def write_fusion(folder: Path, *, dimension: int = DIMENSION) -> None:
    """Write the graphs: values [m, d] -> [m, 2, d], and query [1, d] + sum of items, normalized."""
    item = ["m", 2, dimension]
    twice = [
        helper.make_node("Unsqueeze", ["values", "middle"], ["one"]),
        helper.make_node("Concat", ["one", "one"], ["projected"], axis=1),
    ]
    total = [
        helper.make_node("Gather", ["items", "middle"], ["values"], axis=1),
        helper.make_node("ReduceSum", ["values", "first"], ["all"], keepdims=0),
        helper.make_node("Add", ["query", "all"], ["sum"]),
        helper.make_node("LpNormalization", ["sum"], ["fused"], axis=-1, p=2),
    ]
    zero_and_one = {"first": np.array([0], np.int64), "middle": np.array([1], np.int64)}
    fused = {"query": [1, dimension], "items": item}, {"fused": [1, dimension]}
    for path, graph in (
        (PROJECT, (twice, {"values": ["m", dimension]}, {"projected": item}, zero_and_one)),
        (FUSE, (total, *fused, zero_and_one)),
    ):
        save_model(graph_of(*graph), str(folder / path))


def item_files_of(
    folder: Path, ids: Sequence[str], texts: Sequence[str], keys: Halves, *, attended: int = 2
) -> ItemFiles:
    """Return the files of items whose values equal their keys [M, d]; `folder` has the graphs."""
    write_fusion(folder, dimension=keys.shape[1])
    text_store.write(folder / "ids", ids, lookup=True)
    facts = ItemFacts(items=len(ids), attended=attended, fingerprint="")
    return ItemFiles(
        facts=item_files.with_fingerprint(facts, folder),
        ids=TextStore(folder / "ids", lookup=True),
        texts=texts,
        keys=keys,
        projected=np.stack([keys, keys], axis=1),
        fusion=folder,
    )


def tiny_items(
    folder: Path, encoder: Encoder, items: Mapping[str, str] = ITEMS, *, attended: int = 2
) -> ItemFiles:
    """Return the files of `items` (id -> text), whose keys `encoder` computes."""
    keys = encode(encoder, list(items.values()), role=Role.LABEL).astype(np.float16)
    return item_files_of(folder, list(items), list(items.values()), keys, attended=attended)


def with_projected(vector: Halves) -> tuple[Halves, Halves]:
    """Return the vector [d] of an item that is put, and its projection [2, d]."""
    return vector, np.stack([vector, vector])

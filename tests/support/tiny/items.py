"""An item memory for tiny bundles; its fusion is the normalized sum of query and items.

An item is projected to [key; value]. Both are the item's vector, and the fusion ignores the key.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from onnx import NodeProto, TensorProto, checker, helper, numpy_helper, save_model

from service.core.bundle import item_files
from service.core.bundle.item_files import FUSE, PROJECT, ItemFiles
from service.core.bundle.manifest import ItemFacts
from service.core.encoding.encoder import Encoder, encode
from service.core.files import text_store
from service.core.files.text_store import TextStore
from service.core.types import Halves, Role
from tests.support.tiny.encoder import DIMENSION

Shape = Sequence[str | int]

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
    _save(folder / PROJECT, twice, {"values": ["m", dimension]}, {"projected": item})
    _save(folder / FUSE, total, {"query": [1, dimension], "items": item}, {"fused": [1, dimension]})


def _save(
    path: Path,
    nodes: Sequence[NodeProto],
    inputs: Mapping[str, Shape],
    outputs: Mapping[str, Shape],
) -> None:
    graph = helper.make_graph(
        nodes,
        "tiny-fusion",
        *(
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in ends]
            for ends in (inputs.items(), outputs.items())
        ),
        initializer=[
            numpy_helper.from_array(np.array([0], np.int64), "first"),
            numpy_helper.from_array(np.array([1], np.int64), "middle"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    checker.check_model(model)
    save_model(model, str(path))


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

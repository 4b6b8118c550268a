"""An item memory for tiny bundles; its fusion is the normalised sum of query and items."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from onnx import TensorProto, checker, helper, numpy_helper, save_model

from service.core.bundle import item_files
from service.core.bundle.item_files import ItemFiles
from service.core.bundle.manifest import ItemFacts
from service.core.encoding.encoder import Encoder, encode
from service.core.types import Halves, Role
from tests.support.tiny.encoder import DIMENSION

ITEMS = {"camp": "camping", "feet": "footwear", "light": "lamp light", "water": "water drinks"}


def write_fusion(path: Path, *, dimension: int = DIMENSION) -> None:
    """Write the graph: query [n, d] + the sum of unmasked items [n, m, d], normalised."""
    nodes = [
        helper.make_node("Cast", ["mask"], ["there"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["there", "last"], ["weights"]),
        helper.make_node("Mul", ["items", "weights"], ["kept"]),
        helper.make_node("ReduceSum", ["kept", "middle"], ["all"], keepdims=0),
        helper.make_node("Add", ["query", "all"], ["sum"]),
        helper.make_node("LpNormalization", ["sum"], ["fused"], axis=-1, p=2),
    ]
    graph = helper.make_graph(
        nodes,
        "tiny-fusion",
        inputs=[
            helper.make_tensor_value_info("query", TensorProto.FLOAT, ["n", dimension]),
            helper.make_tensor_value_info("items", TensorProto.FLOAT, ["n", "m", dimension]),
            helper.make_tensor_value_info("mask", TensorProto.BOOL, ["n", "m"]),
        ],
        outputs=[helper.make_tensor_value_info("fused", TensorProto.FLOAT, ["n", dimension])],
        initializer=[
            numpy_helper.from_array(np.array([-1], np.int64), "last"),
            numpy_helper.from_array(np.array([1], np.int64), "middle"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    checker.check_model(model)
    save_model(model, str(path))


def item_files_of(
    folder: Path, ids: Sequence[str], texts: Sequence[str], keys: Halves, *, attended: int = 2
) -> ItemFiles:
    """Return the files of items whose values are their keys [M, d]; the graph lies in `folder`."""
    graph = folder / "fusion.onnx"
    write_fusion(graph, dimension=keys.shape[1])
    facts = ItemFacts(items=len(ids), attended=attended, fingerprint="")
    return ItemFiles(
        facts=item_files.with_fingerprint(facts, graph),
        ids=ids,
        texts=texts,
        keys=keys,
        values=keys,
        fusion=graph,
    )


def tiny_items(
    folder: Path, encoder: Encoder, items: Mapping[str, str] = ITEMS, *, attended: int = 2
) -> ItemFiles:
    """Return the files of `items`, texts by id, whose keys `encoder` encodes."""
    keys = encode(encoder, list(items.values()), role=Role.LABEL).astype(np.float16)
    return item_files_of(folder, list(items), list(items.values()), keys, attended=attended)

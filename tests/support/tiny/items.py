"""An item memory for tiny bundles; its fusion is the normalised sum of query and items."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from service.core.bundle import item_files
from service.core.bundle.item_files import ItemFiles
from service.core.bundle.manifest import ItemFacts
from service.core.encoding.encoder import Encoder, encode
from service.core.types import Halves, Role
from tests.support.tiny.encoder import DIMENSION
from tests.support.tiny.sum_graph import write_sum_graph

ITEMS = {"camp": "camping", "feet": "footwear", "light": "lamp light", "water": "water drinks"}


def write_fusion(path: Path, *, dimension: int = DIMENSION) -> None:
    """Write the graph: query [n, d] + the sum of unmasked items [n, m, d], normalised."""
    write_sum_graph(
        path, one="query", others="items", present="mask", result="fused", dimension=dimension
    )


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

"""The item memory's files: items that queries attend to before keys are looked up; see `items`.

An item is metadata of texts, for instance a category or a tag. M items, d dimensions.

| file                | content                                                               |
|---------------------|-----------------------------------------------------------------------|
| `items/ids.*`       | item ids, with lookup                                                 |
| `items/texts.*`     | item texts                                                            |
| `items/keys.npy`    | fp16 [M, d]: the unit vectors that a query's vector is compared with  |
| `items/values.npy`  | fp16 [M, d]: the vectors that the query attends to                    |
| `items/keys.index`  | optional: HNSW over many keys, in the index library's own format      |
| `items/fusion.onnx` | query [n, d], items [n, m, d], mask [n, m] -> fused unit vectors      |
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from service.core.bundle import item_index
from service.core.bundle.item_index import ItemIndex
from service.core.bundle.manifest import ItemFacts
from service.core.errors import BundleAltered
from service.core.files import text_store
from service.core.files.text_store import TextStore, mapped
from service.core.index.libraries import IndexParameters
from service.core.index.protocol import Progress
from service.core.types import Floats, Halves

IDS, TEXTS = "items/ids", "items/texts"
KEYS, VALUES, FUSION = "items/keys.npy", "items/values.npy", "items/fusion.onnx"
INDEX = "items/keys.index"


@dataclass(frozen=True, kw_only=True, eq=False)
class ItemFiles:
    """The items' ids and texts [M], keys and values [M, d], the fusion graph, and the facts.

    `index` is the one over the keys, None where all items are scanned, or where there is none yet.
    """

    facts: ItemFacts
    ids: Sequence[str] | TextStore
    texts: Sequence[str] | TextStore
    keys: Halves
    values: Halves
    fusion: Path
    index: ItemIndex | None = None


def write(
    files: ItemFiles,
    folder: Path,
    *,
    parameters: IndexParameters,
    queries: Floats,
    progress: Progress,
) -> ItemFiles:
    """Write the files below `folder`; return them with what is known of them then.

    An index over many keys is built with `parameters`, whose `ef` is chosen on `queries` [B, d],
    unless the files have one already.
    """
    text_store.write(folder / IDS, list(files.ids), lookup=True)
    text_store.write(folder / TEXTS, list(files.texts))
    np.save(folder / KEYS, files.keys.astype(np.float16))
    np.save(folder / VALUES, files.values.astype(np.float16))
    shutil.copyfile(files.fusion, folder / FUSION)
    if files.index is not None:
        shutil.copyfile(files.index.path, folder / INDEX)
        return files
    index = item_index.build(
        files.keys,
        folder / INDEX,
        parameters=parameters,
        queries=queries,
        attended=files.facts.attended,
        progress=progress,
    )
    return replace(files, facts=replace(files.facts, index=index))


def read(folder: Path, facts: ItemFacts, *, dimension: int) -> ItemFiles:
    """Map the files below `folder`.

    Raises `BundleAltered`, naming the file that does not fit the facts and `dimension`.
    """
    if not (folder / FUSION).exists():
        raise BundleAltered(f"{folder / FUSION} is missing, but the manifest has an item memory")
    files = ItemFiles(
        facts=facts,
        ids=TextStore(folder / IDS),
        texts=TextStore(folder / TEXTS),
        keys=mapped(folder / KEYS),
        values=mapped(folder / VALUES),
        fusion=folder / FUSION,
        index=_opened(folder / INDEX, facts, dimension=dimension),
    )
    shapes = {
        IDS: ((len(files.ids),), (facts.items,)),
        TEXTS: ((len(files.texts),), (facts.items,)),
        KEYS: (files.keys.shape, (facts.items, dimension)),
        VALUES: (files.values.shape, (facts.items, dimension)),
    }
    for name, (actual, expected) in shapes.items():
        if actual != expected:
            raise BundleAltered(f"{folder / name} has shape {actual}, expected {expected}")
    return files


def _opened(path: Path, facts: ItemFacts, *, dimension: int) -> ItemIndex | None:
    """The index over the keys, None where all items are scanned."""
    if facts.index is None:
        return None
    if not path.exists():
        raise BundleAltered(f"{path} is missing, but the manifest has an index of the items")
    return item_index.open(path, facts.index, items=facts.items, dimension=dimension)


def with_fingerprint(facts: ItemFacts, fusion: Path) -> ItemFacts:
    """Return the facts with their fingerprint: a SHA-256 over the number attended and the graph.

    It identifies the fusion. Items are no part of it, so a snapshot with more items keeps it.
    """
    digest = hashlib.sha256(str(facts.attended).encode())
    digest.update(fusion.read_bytes())
    return replace(facts, fingerprint=digest.hexdigest())

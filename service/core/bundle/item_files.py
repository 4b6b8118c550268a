"""The item memory's files: items that queries attend to before keys are looked up; see `items`.

An item is metadata of texts, for instance a category or a tag. M items, d dimensions.

| file                  | content                                                             |
|-----------------------|---------------------------------------------------------------------|
| `items/ids.*`         | item ids, with lookup                                               |
| `items/texts.*`       | item texts                                                          |
| `items/keys.npy`      | fp16 [M, d]: the unit vectors that a query's vector is compared to  |
| `items/projected.npy` | fp16 [M, 2, d]: what a query reads of an item, see `items.fusion`   |
| `items/keys.index`    | optional: HNSW over many keys, in the index library's own format    |
| `items/project.onnx`  | values [m, d] of items -> projected [m, 2, d]                       |
| `items/fuse.onnx`     | query [1, d], items [m, 2, d] (projected) -> fused unit vector      |

The facts have a format version. In format 1 the items were not projected: `values.npy` [M, d] was
read by one graph, `fusion.onnx`. Such bundles are refused.
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
from service.core.errors import BundleAltered, BundleUnsupported
from service.core.files import text_store
from service.core.files.text_store import TextStore, mapped
from service.core.index.libraries import IndexParameters
from service.core.index.protocol import Progress
from service.core.types import Floats, Halves

IDS, TEXTS = "items/ids", "items/texts"
KEYS, PROJECTED, INDEX = "items/keys.npy", "items/projected.npy", "items/keys.index"
FUSION = "items"  # the folder of the two graphs
PROJECT, FUSE = "project.onnx", "fuse.onnx"
FORMAT = 2


@dataclass(frozen=True, kw_only=True, eq=False)
class ItemFiles:
    """The items' ids and texts [M], keys [M, d], what is read of them [M, 2, d], and the facts.

    `fusion` is the folder of the fusion's graphs. `index` is the one over the keys, None where all
    items are scanned, or where there is none yet.
    """

    facts: ItemFacts
    ids: Sequence[str] | TextStore
    texts: Sequence[str] | TextStore
    keys: Halves
    projected: Halves
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
    np.save(folder / PROJECTED, files.projected.astype(np.float16))
    for graph in (PROJECT, FUSE):
        shutil.copyfile(files.fusion / graph, folder / FUSION / graph)
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

    Raises `BundleAltered`, naming the file that does not fit the facts and `dimension`, and
    `BundleUnsupported` for items of another format.
    """
    if facts.format != FORMAT:
        raise BundleUnsupported(
            f"{folder} has items in format {facts.format}, and this version reads format {FORMAT}:"
            " export encoder and bundle again (python -m export)"
        )
    for graph in (PROJECT, FUSE):
        if not (folder / FUSION / graph).exists():
            path = folder / FUSION / graph
            raise BundleAltered(f"{path} is missing, but the manifest has an item memory")
    files = ItemFiles(
        facts=facts,
        ids=TextStore(folder / IDS),
        texts=TextStore(folder / TEXTS),
        keys=mapped(folder / KEYS),
        projected=mapped(folder / PROJECTED),
        fusion=folder / FUSION,
        index=_opened(folder / INDEX, facts, dimension=dimension),
    )
    shapes = {
        IDS: ((len(files.ids),), (facts.items,)),
        TEXTS: ((len(files.texts),), (facts.items,)),
        KEYS: (files.keys.shape, (facts.items, dimension)),
        PROJECTED: (files.projected.shape, (facts.items, 2, dimension)),
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
    """Return the facts with the format that is written now, and their fingerprint.

    That is a SHA-256 over the number attended and the graphs in the folder `fusion`. It identifies
    the fusion. Items are no part of it, so a snapshot with more items keeps it.
    """
    digest = hashlib.sha256(str(facts.attended).encode())
    for graph in (PROJECT, FUSE):
        digest.update((fusion / graph).read_bytes())
    return replace(facts, format=FORMAT, fingerprint=digest.hexdigest())

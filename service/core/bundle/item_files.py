"""The files of the item memory. A query attends to items before the keys are searched; see `items`.

An item is a piece of metadata, such as a category or a tag. M items, B queries, d dimensions.

| file                  | content                                                             |
|-----------------------|---------------------------------------------------------------------|
| `items/ids.*`         | item ids, with lookup                                               |
| `items/texts.*`       | item texts                                                          |
| `items/keys.npy`      | fp16 [M, d]: the unit vectors that a query's vector is compared to  |
| `items/projected.npy` | fp16 [M, 2, d]: the values that queries read, see `items.fusion`     |
| `items/keys.index`    | optional: HNSW over many keys, in the index library's own format    |
| `items/project.onnx`  | values [m, d] of items -> projected [m, 2, d]                       |
| `items/fuse.onnx`     | query [1, d], items [m, 2, d] (projected) -> fused unit vector      |
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from service.core.bundle.manifest import IndexFacts, ItemFacts
from service.core.files import text_store
from service.core.files.arrays import mapped, require_finite
from service.core.files.text_store import TextStore
from service.core.index.protocol import Segment
from service.core.types import Halves

IDS, TEXTS = "items/ids", "items/texts"
KEYS, PROJECTED, INDEX = "items/keys.npy", "items/projected.npy", "items/keys.index"
FUSION = "items"  # the folder of the two graphs
PROJECT, FUSE = "project.onnx", "fuse.onnx"


def files(facts: ItemFacts) -> list[str]:
    """Return the names of the files that `read` reads."""
    index = [] if facts.index is None else facts.index.files(INDEX, rows=facts.items)
    graphs = [f"{FUSION}/{graph}" for graph in (PROJECT, FUSE)]
    stores = [*text_store.files(IDS, lookup=True), *text_store.files(TEXTS)]
    return [*stores, KEYS, PROJECTED, *index, *graphs]


@dataclass(frozen=True, kw_only=True, eq=False)
class ItemIndex:
    """An open index, the path of its file, and its facts."""

    path: Path
    segment: Segment
    facts: IndexFacts


@dataclass(frozen=True, kw_only=True, eq=False)
class ItemFiles:
    """The items' ids and texts [M], keys [M, d], projected values [M, 2, d], and the facts.

    `fusion` is the folder with the graphs of the fusion. `index` is None if all items are scanned,
    or if it is not built yet.
    """

    facts: ItemFacts
    ids: Sequence[str] | TextStore
    texts: Sequence[str] | TextStore
    keys: Halves
    projected: Halves
    fusion: Path
    index: ItemIndex | None = None


def write(files: ItemFiles, folder: Path) -> None:
    """Write the files into `folder`, with their index if they have one."""
    text_store.write(folder / IDS, list(files.ids), lookup=True)
    text_store.write(folder / TEXTS, list(files.texts))
    np.save(folder / KEYS, files.keys.astype(np.float16))
    np.save(folder / PROJECTED, files.projected.astype(np.float16))
    for graph in (PROJECT, FUSE):
        shutil.copyfile(files.fusion / graph, folder / FUSION / graph)
    if files.index is not None:
        source = files.index.path
        for name in files.index.facts.files(INDEX, rows=files.facts.items):
            shutil.copyfile(source.with_name(Path(name).name), folder / name)


def read(folder: Path, facts: ItemFacts, *, dimension: int, verify: bool = True) -> ItemFiles:
    """Open the files in `folder` memory-mapped; `verify` also checks the numbers in them.

    Raises `BundleAltered`, naming the file that does not fit the facts and `dimension`.
    """
    ids = TextStore(folder / IDS, lookup=True, count=facts.items)
    texts = TextStore(folder / TEXTS, count=facts.items)
    index = None
    if facts.index is not None:
        segment = facts.index.open(folder / INDEX, rows=facts.items, dimension=dimension)
        index = ItemIndex(path=folder / INDEX, segment=segment, facts=facts.index)
    opened = ItemFiles(
        facts=facts,
        ids=ids,
        texts=texts,
        keys=mapped(folder / KEYS, np.float16, (facts.items, dimension)),
        projected=mapped(folder / PROJECTED, np.float16, (facts.items, 2, dimension)),
        fusion=folder / FUSION,
        index=index,
    )
    if verify:
        ids.verify()
        texts.verify()
        require_finite(folder / KEYS)
        require_finite(folder / PROJECTED)
    return opened


def with_fingerprint(facts: ItemFacts, fusion: Path) -> ItemFacts:
    """Return the facts with a fingerprint: the SHA-256 over `attended` and the graphs in `fusion`.

    The items are not part of it, so a snapshot with more items keeps the fingerprint.
    """
    digest = hashlib.sha256(str(facts.attended).encode())
    for graph in (PROJECT, FUSE):
        digest.update((fusion / graph).read_bytes())
    return replace(facts, fingerprint=digest.hexdigest())

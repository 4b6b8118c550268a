"""A bundle with items: another bundle's files, and some of its texts with their keys as items.

Keys of real texts are searched as those of real items are: an index over keys that were drawn at
random finds fewer of the nearest. The fusion has OAK's graphs with weights drawn at random, which
takes as long as a trained one.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from export.encoder.fusion import trace_fusion
from service.core.bundle import item_files, manifest
from service.core.bundle.bundle import Bundle, open_bundle
from service.core.bundle.item_files import ItemFiles
from service.core.bundle.manifest import ItemFacts
from service.core.errors import InvalidInput
from service.core.files.atomic import new_folder
from service.core.files.checksums import file_facts
from service.core.items.fusion import OnnxFusion
from service.core.types import Halves, Rows
from training.systems.oak.fusion import Fusion
from training.systems.oak.system import Settings

_NOISE = 0.01
QUERIES = 1_000  # keys that are no items, on which the index is measured


def drawn_rows(bundle: Bundle, items: int, *, seed: int) -> tuple[Rows, Rows]:
    """Rows of a bundle for so many items, and others for queries, at most `QUERIES`.

    Raises `InvalidInput` for a bundle with too few keys.
    """
    if items >= len(bundle.keys):
        raise InvalidInput(
            f"{bundle.folder} has {len(bundle.keys)} keys: too few for {items} items and a query"
        )
    order = np.random.default_rng(seed).permutation(len(bundle.keys)).astype(np.int64)
    return order[:items], order[items:][:QUERIES]


def bundle_with_items(source: Path, target: Path, *, items: int, seed: int) -> Path:
    """Write the bundle `source` with so many items as `target`, unless that is there."""
    if target.exists():
        return target
    bundle = open_bundle(source)
    rows, queries = drawn_rows(bundle, items, seed=seed)
    with new_folder(target) as folder:
        for name in bundle.manifest.files:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            os.link((source / name).resolve(), folder / name)
        with TemporaryDirectory() as graphs:
            trace_fusion(_fusion(bundle.manifest.encoder.dimension, seed=seed), Path(graphs))
            files = item_files.write(
                _files(bundle, rows, Path(graphs)),
                folder,
                parameters=bundle.manifest.index.parameters(),
                queries=bundle.keys[queries].astype(np.float32),
                progress=lambda done: None,
            )
        facts = replace(
            bundle.manifest, name=target.name, items=files.facts, files=file_facts(folder)
        )
        manifest.write(facts, folder)
    return target


def _fusion(dimension: int, *, seed: int) -> Fusion:
    """OAK's fusion; before training several matrices are equal, and the graphs hold one of them."""
    settings = Settings()
    fusion = Fusion(dimension, heads=settings.heads, hidden=settings.hidden * dimension)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weights in fusion.parameters():
            weights.add_(_NOISE * torch.randn(weights.shape, generator=generator))
    return fusion


def _files(bundle: Bundle, rows: Rows, graphs: Path) -> ItemFiles:
    texts = [*bundle.instance_texts, *bundle.label_texts]
    facts = ItemFacts(items=len(rows), attended=Settings().attended, fingerprint="")
    keys: Halves = bundle.keys[rows]
    return ItemFiles(
        facts=item_files.with_fingerprint(facts, graphs),
        ids=[f"item-{row}" for row in rows.tolist()],
        texts=[texts[row] for row in rows.tolist()],
        keys=keys,
        projected=OnnxFusion(graphs).project(keys),
        fusion=graphs,
    )

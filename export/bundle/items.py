"""A bundle's item memory, and instance keys that are fused with their predicted items.

Shapes: N instances, M items, d dimensions.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from export.exported_encoder import ExportedEncoder
from export.item_files import FUSION, RESIDUALS, digest_of_items
from service.core.bundle.item_files import FORMAT, ItemFiles, with_fingerprint
from service.core.bundle.manifest import ItemFacts
from service.core.encoding.encoder import encode_all
from service.core.errors import InvalidInput
from service.core.items.fused_queries import fused
from service.core.items.fusion import OnnxFusion
from service.core.items.item_memory import ItemMemory
from service.core.types import Floats, Halves, Role
from training.datasets.dataset import Dataset

_CHUNK = 1_024  # instances that are fused between two progress reports


def item_files(encoder: ExportedEncoder, dataset: Dataset, *, threads: int) -> ItemFiles | None:
    """The item memory of an exported encoder; None where its queries attend to no items.

    Raises `InvalidInput` if the encoder was trained on other items than the data set's, or holds
    graphs of another format.
    """
    facts = encoder.description.items
    if facts is None:
        return None
    if facts.format != FORMAT:
        raise InvalidInput(
            f"{encoder.folder} has a fusion in format {facts.format}, and this version reads format"
            f" {FORMAT}: export the encoder again (python -m export encoder)"
        )
    if facts.digest != digest_of_items(dataset):
        raise InvalidInput(
            f"{encoder.folder} was trained on other metadata items than those of {dataset.name}:"
            " give the data set that it was trained on"
        )
    assert dataset.metadata is not None
    keys = encode_all(
        encoder.open_encoder(), dataset.metadata.texts, role=Role.LABEL, threads=threads
    )
    residuals: Halves = np.load(encoder.folder / RESIDUALS)
    graphs: Path = encoder.folder / FUSION
    values = (keys + residuals.astype(np.float32)).astype(np.float16)
    served = ItemFacts(items=facts.items, attended=facts.attended, fingerprint="")
    return ItemFiles(
        facts=with_fingerprint(served, graphs),
        ids=dataset.metadata.uids,
        texts=dataset.metadata.texts,
        keys=keys.astype(np.float16),
        projected=OnnxFusion(graphs).project(values),
        fusion=graphs,
    )


def fused_instances(
    instances: Halves, items: ItemFiles, *, progress: Callable[[int], None]
) -> Halves:
    """Instance keys [N, d] in fp16, fused as the service fuses the text of a click."""
    memory, fusion = ItemMemory.of(items), OnnxFusion(items.fusion)
    keys = np.empty_like(instances)
    for start in range(0, len(instances), _CHUNK):
        cut = slice(start, start + _CHUNK)
        vectors = instances[cut].astype(np.float32)
        keys[cut] = fused(memory, fusion, vectors).vectors.astype(np.float16)
        progress(min(start + _CHUNK, len(instances)))
    return keys


def fused_queries(items: ItemFiles, queries: Floats) -> Floats:
    """Queries [n, d], each fused with its predicted items."""
    return fused(ItemMemory.of(items), OnnxFusion(items.fusion), queries).vectors

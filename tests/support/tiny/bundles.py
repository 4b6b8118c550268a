"""Tiny but real bundles: a catalog of outdoor goods, written by `write_bundle`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import orjson

from service.core.bundle import manifest
from service.core.bundle.content import BundleContent, write_bundle
from service.core.bundle.manifest import PredictorFacts
from service.core.encoding.encoder import Encoder, OnnxEncoder, encode
from service.core.files.folder_facts import file_facts
from service.core.index.libraries import IndexParameters
from service.core.types import Role
from tests.support.tiny.encoder import tiny_facts, write_tiny_encoder
from tests.support.tiny.items import ITEMS, tiny_items
from tests.support.tiny.novel import tiny_novel
from tests.support.tiny.reranker import tiny_reranker

LABELS = {
    "boots": "hiking boots",
    "bottle": "water bottle",
    "lamp": "head lamp",
    "shoes": "running shoes",
    "stove": "gas stove",
    "tent": "camping tent",
}
INSTANCES = {
    "shoes for running": ("shoes",),
    "trail footwear": ("shoes", "boots"),
    "shelter for two": ("tent",),
    "light for a tent": ("lamp", "tent"),
    "nothing was clicked": (),
    "cook outdoors": ("stove",),
    "drinks on the trail": ("bottle",),
    "warm winter boots": ("boots",),
}


@dataclass(frozen=True, kw_only=True)
class Catalogue:
    """Label texts by id, and queries with the ids of their clicked labels."""

    labels: Mapping[str, str] = field(default_factory=lambda: LABELS)
    instances: Mapping[str, Sequence[str]] = field(default_factory=lambda: INSTANCES)

    def votes(self) -> list[list[int]]:
        """The columns of the labels that each instance votes for."""
        column = {label_id: place for place, label_id in enumerate(self.labels)}
        return [[column[label_id] for label_id in voted] for voted in self.instances.values()]


def make_bundle(
    target: Path,
    catalogue: Catalogue | None = None,
    *,
    encoder: Encoder | None = None,
    tau: float = 0.1,
    depth: int = 10,
    index: IndexParameters | None = None,
    label_details: Sequence[str] = (),
    version: int = 0,
    log: str = "",
    vote_weights: Sequence[float] | None = None,
    hubs: Sequence[float] | None = None,
    masses: Sequence[float] | None = None,
    aliases: Sequence[int] = (),
    novel: int | None = None,
    items: Mapping[str, str] | None = None,
    reranked: int | None = None,
    parts: int | None = None,
    **encoder_facts: Any,
) -> Path:
    """Write a bundle of `catalogue` with keys by `encoder`, by default the bundle's own encoder.

    `novel` is a seed and adds IRENE's files, with classifiers of all labels except the last one.
    `items` maps ids to texts and adds an item memory. `reranked` adds a reranker of that many
    candidates. `hubs` are subtracted from the similarities of the rows. `masses` are weights of
    instances in the data. `aliases` are instance
    rows. The keys are divided into `parts`.
    """
    catalogue = catalogue or Catalogue()
    instances, labels = list(catalogue.instances), list(catalogue.labels.values())
    votes = catalogue.votes()
    with TemporaryDirectory() as folder:
        source = Path(folder)
        write_tiny_encoder(source)
        facts = tiny_facts(**encoder_facts)
        encoder = encoder or OnnxEncoder(source, facts)
        keys = [
            encode(encoder, instances, role=Role.QUERY),
            encode(encoder, labels, role=Role.LABEL),
        ]
        content = BundleContent(
            name=target.name,
            dataset="outdoor goods",
            encoder=facts,
            encoder_onnx=source / "encoder.onnx",
            tokenizer_json=source / "tokenizer.json",
            keys=np.concatenate(keys).astype(np.float16),
            indptr=np.cumsum([0, *(len(columns) for columns in votes)]),
            indices=np.array([column for columns in votes for column in columns], np.int32),
            instance_texts=instances,
            label_ids=list(catalogue.labels),
            label_texts=labels,
            predictor=PredictorFacts(
                tau=tau, depth=depth, memorization=0.5, hubs=0.0 if hubs is None else 0.5
            ),
            index=index or IndexParameters(m=8, ef_construction=40, ef=64),
            metrics={"parity.cosine_mean": 1.0},
            label_details=label_details,
            version=version,
            log=log,
            vote_weights=None if vote_weights is None else np.array(vote_weights, np.float32),
            hubs=None if hubs is None else np.array(hubs, np.float16),
            masses=None if masses is None else np.array(masses, np.float32),
            aliases=np.array(aliases, np.int64),
            items=items and tiny_items(source, encoder, items),
            parts=parts,
        )
        content = _with_options(content, source, novel, reranked)
        write_bundle(content, target, progress=lambda done: None)
    return target


def write_whole_bundle(target: Path, **options: Any) -> Path:
    """Write a bundle with every optional part."""
    weights = [1.0, 0.5, 1.5, 1.0, 0.5, 1.5, 1.0, 1.0, 1.0]
    parts = {"novel": 0, "items": ITEMS, "reranked": 4, "vote_weights": weights}
    parts |= {"hubs": np.linspace(-0.1, 0.1, len(INSTANCES) + len(LABELS))}
    parts |= {"masses": np.linspace(0.5, 9.0, len(INSTANCES))}
    return make_bundle(target, **parts, version=7, log="0f" * 16, **options)


def _with_options(
    content: BundleContent, source: Path, novel: int | None, reranked: int | None
) -> BundleContent:
    if novel is not None:
        columns = np.arange(len(content.label_ids) - 1)
        keys = content.keys[len(content.instance_texts) + columns]
        content = replace(content, novel=tiny_novel(source, keys, columns, seed=novel))
    if reranked is not None:
        texts = list(content.label_texts)
        reranker = tiny_reranker(source, texts, content.predictor, candidates=reranked)
        content = replace(content, reranker=reranker)
    return content


def sign_again(folder: Path) -> None:
    """Write the manifest again with the checksums of files that a test has replaced."""
    path = folder / manifest.FILE_NAME
    document = orjson.loads(path.read_bytes())
    path.unlink()
    document["files"] = {
        name: {"bytes": facts.bytes, "sha256": facts.sha256}
        for name, facts in file_facts(folder).items()
    }
    write_document(folder, document)


def write_document(folder: Path, document: dict[str, Any]) -> None:
    """Write a document as the manifest, with a correct checksum of the document."""
    document.pop("sha256", None)
    document["sha256"] = manifest.digest_of(document)
    (folder / manifest.FILE_NAME).write_bytes(orjson.dumps(document))

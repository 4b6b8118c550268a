"""What a bundle is to hold, and how it is written: under a temporary name, synced and renamed.

So a bundle is complete or absent. Its files are described in `bundle`.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np

from service.core.bundle import irene_files, item_files, manifest, reranker_files
from service.core.bundle.bundle import (
    BASE_SEGMENT,
    CLICKS,
    ENCODER,
    LABEL_DETAILS,
    QUERY_ENCODER,
    TOKENIZER,
    VOTE_WEIGHTS,
    Bundle,
    QueryEncoder,
)
from service.core.bundle.irene_files import NovelFiles
from service.core.bundle.item_files import ItemFiles
from service.core.bundle.manifest import EncoderFacts, LearnedFacts, Manifest, PredictorFacts
from service.core.bundle.reranker_files import RerankerFiles
from service.core.files import text_store
from service.core.files.atomic import new_folder
from service.core.files.checksums import file_facts
from service.core.index.libraries import IndexParameters, load_library
from service.core.index.protocol import Progress, Segment
from service.core.types import Floats, Halves, Indices, Rows

_RECORDED_LIBRARIES = (
    "keymatch numpy onnxruntime onnxruntime-gpu faiss-cpu faiss-gpu hnswlib torch".split()
)
ITEM_QUERIES = 1_000  # the most that the index over items is measured with


@dataclass(frozen=True, kw_only=True)
class BundleContent:
    """The content of a bundle before it is written: arrays, texts, and the encoder's two files."""

    name: str
    dataset: str
    encoder: EncoderFacts
    encoder_onnx: Path
    tokenizer_json: Path
    keys: Halves  # [N + L, d]
    indptr: Rows  # [N + 1]
    indices: Indices
    instance_texts: Sequence[str]
    label_ids: Sequence[str]
    label_texts: Sequence[str]
    predictor: PredictorFacts
    index: IndexParameters
    metrics: dict[str, float]
    vote_weights: Floats | None = None  # of `indices`; None: every vote weighs 1
    clicks: Rows = field(default_factory=lambda: np.zeros(0, np.int64))  # posted instances
    label_details: Sequence[str] = ()  # [L] as `label_details.dump` returns them, or empty
    version: int = 0  # of a snapshot: sequence number of its last write
    log: str = ""  # of a snapshot: id of the label log that has this write
    log_chain: str | None = None  # of a snapshot: the log's chain at this write, hexadecimal
    novel: NovelFiles | None = None
    items: ItemFiles | None = None
    query_encoder: QueryEncoder | None = None
    learned: LearnedFacts | None = None
    reranker: RerankerFiles | None = None

    @classmethod
    def like(
        cls,
        bundle: Bundle,
        *,
        name: str,
        keys: Halves,
        indptr: Rows,
        indices: Indices,
        instance_texts: Sequence[str],
        label_ids: Sequence[str],
        label_texts: Sequence[str],
        metrics: dict[str, float],
    ) -> BundleContent:
        """Other rows with the encoders and settings of `bundle`; `replace` adds what is optional.

        IRENE's files belong to the rows, so they are not taken over.
        """
        facts = bundle.manifest
        return cls(
            name=name,
            dataset=facts.dataset,
            encoder=facts.encoder,
            encoder_onnx=bundle.folder / ENCODER,
            tokenizer_json=bundle.folder / TOKENIZER,
            keys=keys,
            indptr=indptr,
            indices=indices,
            instance_texts=instance_texts,
            label_ids=label_ids,
            label_texts=label_texts,
            predictor=facts.predictor,
            index=facts.index.parameters(),
            metrics=metrics,
            items=bundle.items,
            query_encoder=bundle.query_encoder,
            learned=facts.learned,
            reranker=bundle.reranker,
        )


Tune = Callable[[BundleContent, Segment], BundleContent]  # returns it with other search parameters


def write_bundle(
    content: BundleContent, target: Path, *, progress: Progress, tune: Tune | None = None
) -> None:
    """Build the index and write the bundle to `target`.

    `progress` is called with the number of indexed rows. `tune` may choose how the built graph is
    searched. Raises `InvalidData` if `target` exists.
    """
    with new_folder(target) as folder:
        for source, name in (
            (content.encoder_onnx, ENCODER),
            (content.tokenizer_json, TOKENIZER),
            *([(content.query_encoder.graph, QUERY_ENCODER)] if content.query_encoder else []),
        ):
            (folder / name).write_bytes(source.read_bytes())
        np.save(folder / "keys.npy", content.keys)
        (folder / "values").mkdir()
        np.save(folder / "values/indptr.npy", content.indptr.astype(np.int64))
        np.save(folder / "values/indices.npy", content.indices.astype(np.int32))
        if content.vote_weights is not None:
            np.save(folder / VOTE_WEIGHTS, content.vote_weights.astype(np.float32))
        text_store.write(folder / "instances/texts", content.instance_texts)
        text_store.write(folder / "labels/ids", content.label_ids, lookup=True)
        text_store.write(folder / "labels/texts", content.label_texts)
        if len(content.clicks):
            np.save(folder / CLICKS, content.clicks.astype(np.int64))
        if content.label_details:
            text_store.write(folder / LABEL_DETAILS, content.label_details)
        if content.novel is not None:
            irene_files.write(content.novel, folder)
        if content.items is not None:
            content = replace(
                content, items=_written_items(content, content.items, folder, progress)
            )
        if content.reranker is not None:
            reranker_files.write(content.reranker, folder)
        (folder / BASE_SEGMENT).parent.mkdir()
        library, rows = load_library(content.index.library), len(content.keys)
        library.build(content.keys, content.index, folder / BASE_SEGMENT, progress)
        if tune is not None:
            dimension = content.encoder.dimension
            content = tune(
                content, library.open(folder / BASE_SEGMENT, rows=rows, dimension=dimension)
            )
        manifest.write(_describe(content, folder), folder)


def _written_items(
    content: BundleContent, items: ItemFiles, folder: Path, progress: Progress
) -> ItemFiles:
    """Write the items; keys of the bundle, spread over all of it, stand in for queries."""
    return item_files.write(
        items,
        folder,
        parameters=content.index,
        queries=content.keys[:: len(content.keys) // ITEM_QUERIES + 1].astype(np.float32),
        progress=lambda done: progress(0),  # it counts rows; called to see whether to go on
    )


def _describe(content: BundleContent, folder: Path) -> Manifest:
    novel = None if content.novel is None else content.novel.facts
    return Manifest(
        format=manifest.FORMAT,
        version=manifest.VERSION,
        name=content.name,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        dataset=content.dataset,
        encoder=content.encoder,
        memory=manifest.MemoryFacts(
            instances=len(content.instance_texts),
            labels=len(content.label_ids),
            votes=len(content.indices),
            version=content.version,
        ),
        index=manifest.IndexFacts(
            library=content.index.library,
            m=content.index.m,
            ef_construction=content.index.ef_construction,
            ef=content.index.ef,
        ),
        predictor=content.predictor,
        metrics=content.metrics,
        libraries={"python": platform.python_version(), **_library_versions()},
        files=file_facts(folder),
        log=content.log,
        log_chain=content.log_chain,
        novel=novel,
        items=None if content.items is None else content.items.facts,
        query_encoder=content.query_encoder.facts if content.query_encoder else None,
        learned=content.learned,
        reranker=None if content.reranker is None else content.reranker.facts,
    )


def _library_versions() -> dict[str, str]:
    versions = {}
    for name in _RECORDED_LIBRARIES:
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    return versions

"""The bundle, format version 1: one folder with everything that is served.

| file                            | content                                                    |
|---------------------------------|------------------------------------------------------------|
| `manifest.json`                 | format, version, facts, size and SHA-256 of every file     |
| `encoder.onnx`                  | token ids -> unit vectors; pools and normalises inside     |
| `tokenizer.json`                | the tokenizer, in the format of Rust's `tokenizers`        |
| `keys.npy`                      | fp16 [N + L, d]: instance rows, then label rows (Eq. 3)    |
| `segments/base.index`           | HNSW over the keys, in the index library's own format      |
| `values/indptr.npy`             | int64 [N + 1]: instance i votes for indices[indptr[i]:     |
|                                 | indptr[i + 1]]                                             |
| `values/indices.npy`            | int32: label columns; label row j votes for column j only, |
|                                 | so the identity block of V is not stored                   |
| `instances/texts.*`             | instance texts, see `text_store`                           |
| `labels/ids.*`, `labels/texts.*`| label ids (with lookup) and texts                          |
| `labels/details.*`              | in snapshots: queries, metadata, ... see `label_details`   |
| `novel/*`                       | optional: IRENE's combiner and classifiers, `irene_files`  |

A bundle is written under a temporary name, synced and renamed, so that it is complete or absent.
Opening it verifies the checksum of every file and maps the large ones. Nothing is pickled.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from service.core.bundle import irene_files, manifest
from service.core.bundle.irene_files import NovelFiles
from service.core.bundle.label_details import LabelDetails
from service.core.bundle.manifest import EncoderFacts, Manifest, PredictorFacts
from service.core.errors import BundleAltered
from service.core.files import text_store
from service.core.files.atomic import new_folder
from service.core.files.checksums import file_facts, verify_files
from service.core.files.text_store import TextStore
from service.core.index.libraries import IndexParameters, load_library
from service.core.index.protocol import Progress, Segment
from service.core.types import Halves, Indices, Rows

BASE_SEGMENT = "segments/base.index"
LABEL_DETAILS = "labels/details"
_RECORDED_LIBRARIES = ("keymatch", "numpy", "onnxruntime", "faiss-cpu", "hnswlib", "torch")


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """An opened bundle; its arrays are read-only memory maps."""

    folder: Path
    manifest: Manifest
    keys: Halves  # [N + L, d]
    segment: Segment
    indptr: NDArray[np.int64]  # [N + 1]
    indices: Indices
    instance_texts: TextStore
    label_ids: TextStore
    label_texts: TextStore
    label_details: LabelDetails
    novel: NovelFiles | None = None

    @property
    def instances(self) -> int:
        """N, the number of instances."""
        return self.manifest.memory.instances

    @property
    def labels(self) -> int:
        """L, the number of labels."""
        return self.manifest.memory.labels


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
    label_details: Sequence[str] = ()  # [L] as `label_details.dump` returns them, or empty
    version: int = 0  # of a snapshot: sequence number of its last write
    log: str = ""  # of a snapshot: id of the label log that has this write
    novel: NovelFiles | None = None


def write_bundle(content: BundleContent, target: Path, *, progress: Progress) -> None:
    """Build the index and write the bundle to `target`.

    `progress` is called with the number of indexed rows. Raises `InvalidData` if `target` exists.
    """
    with new_folder(target) as folder:
        for source, name in (
            (content.encoder_onnx, "encoder.onnx"),
            (content.tokenizer_json, "tokenizer.json"),
        ):
            (folder / name).write_bytes(source.read_bytes())
        np.save(folder / "keys.npy", content.keys)
        (folder / "values").mkdir()
        np.save(folder / "values/indptr.npy", content.indptr.astype(np.int64))
        np.save(folder / "values/indices.npy", content.indices.astype(np.int32))
        text_store.write(folder / "instances/texts", content.instance_texts)
        text_store.write(folder / "labels/ids", content.label_ids, lookup=True)
        text_store.write(folder / "labels/texts", content.label_texts)
        if content.label_details:
            text_store.write(folder / LABEL_DETAILS, content.label_details)
        if content.novel is not None:
            irene_files.write(content.novel, folder)
        (folder / BASE_SEGMENT).parent.mkdir()
        load_library(content.index.library).build(
            content.keys, content.index, folder / BASE_SEGMENT, progress
        )
        manifest.write(_describe(content, folder), folder)


def open_bundle(folder: Path, *, verify: bool = True) -> Bundle:
    """Verify and open a bundle.

    A child process may pass `verify=False` for a bundle that its parent has verified. Raises
    `BundleMissing`, `BundleAltered` or `BundleUnsupported`, naming the file.
    """
    facts = manifest.read(folder)
    if verify:
        verify_files(folder, facts.files)
    instances, labels = facts.memory.instances, facts.memory.labels
    bundle = Bundle(
        folder=folder,
        manifest=facts,
        keys=text_store.mapped(folder / "keys.npy"),
        segment=load_library(facts.index.library).open(
            folder / BASE_SEGMENT, rows=instances + labels, dimension=facts.encoder.dimension
        ),
        indptr=text_store.mapped(folder / "values/indptr.npy"),
        indices=text_store.mapped(folder / "values/indices.npy"),
        instance_texts=TextStore(folder / "instances/texts"),
        label_ids=TextStore(folder / "labels/ids"),
        label_texts=TextStore(folder / "labels/texts"),
        label_details=LabelDetails(
            TextStore(folder / LABEL_DETAILS) if f"{LABEL_DETAILS}.bin" in facts.files else None
        ),
        novel=None
        if facts.novel is None
        else irene_files.read(
            folder, facts.novel, labels=labels, dimension=facts.encoder.dimension
        ),
    )
    _check_shapes(bundle)
    return bundle


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
        novel=novel,
    )


def _library_versions() -> dict[str, str]:
    versions = {}
    for name in _RECORDED_LIBRARIES:
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    return versions


def _check_shapes(bundle: Bundle) -> None:
    """Compare the arrays' shapes with the manifest; checksums do not prove that they match.

    Raises `BundleAltered`, naming the file.
    """
    rows, facts = bundle.instances + bundle.labels, bundle.manifest
    shapes = {
        "keys.npy": (bundle.keys.shape, (rows, facts.encoder.dimension)),
        "values/indptr.npy": (bundle.indptr.shape, (bundle.instances + 1,)),
        "values/indices.npy": (bundle.indices.shape, (facts.memory.votes,)),
        "instances/texts": (len(bundle.instance_texts), bundle.instances),
        "labels/ids": (len(bundle.label_ids), bundle.labels),
        "labels/texts": (len(bundle.label_texts), bundle.labels),
    }
    if f"{LABEL_DETAILS}.bin" in facts.files:
        shapes[LABEL_DETAILS] = (len(TextStore(bundle.folder / LABEL_DETAILS)), bundle.labels)
    for name, (actual, expected) in shapes.items():
        if actual != expected:
            raise BundleAltered(f"{bundle.folder / name} has shape {actual}, expected {expected}")

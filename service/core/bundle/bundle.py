"""The bundle, format version 1: one folder with everything that is served.

| file                            | content                                                    |
|---------------------------------|------------------------------------------------------------|
| `manifest.json`                 | format, version, facts, size and SHA-256 of every file     |
| `encoder.onnx`                  | token ids -> unit vectors; pools and normalises inside     |
| `query_encoder.onnx`            | optional: a smaller graph of the same vector space, which  |
|                                 | encodes the queries to answer; keys are `encoder.onnx`'s   |
| `tokenizer.json`                | the tokenizer, in the format of Rust's `tokenizers`        |
| `keys.npy`                      | fp16 [N + L, d]: instance rows, then label rows (Eq. 3)    |
| `segments/base.index`           | HNSW over the keys, in the index library's own format      |
| `values/indptr.npy`             | int64 [N + 1]: instance i votes for indices[indptr[i]:     |
|                                 | indptr[i + 1]]                                             |
| `values/indices.npy`            | int32: label columns; label row j votes for column j only, |
|                                 | so the identity block of V is not stored                   |
| `values/weights.npy`            | optional: float32, the weight of each vote in `indices`;   |
|                                 | without it every vote weighs 1                             |
| `instances/texts.*`             | instance texts, see `text_store`                           |
| `instances/clicks.npy`          | in snapshots: int64, ascending, the instances that were    |
|                                 | posted as clicks, so that a repeated click replaces its row|
| `labels/ids.*`, `labels/texts.*`| label ids (with lookup) and texts                          |
| `labels/details.*`              | in snapshots: queries, metadata, ... see `label_details`   |
| `novel/*`                       | optional: IRENE's combiner and classifiers, `irene_files`  |
| `items/*`                       | optional: items that queries attend to, `item_files`       |
| `reranker/*`                    | optional: the trees of a second ranking, `reranker_files`  |

`content.write_bundle` writes it. Opening a bundle verifies the checksum of every file and maps the
large ones. Nothing is pickled.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from service.core.bundle import irene_files, item_files, manifest, reranker_files
from service.core.bundle.irene_files import NovelFiles
from service.core.bundle.item_files import ItemFiles
from service.core.bundle.label_details import LabelDetails
from service.core.bundle.manifest import EncoderFacts, Manifest
from service.core.bundle.reranker_files import RerankerFiles
from service.core.errors import BundleAltered
from service.core.files import text_store
from service.core.files.checksums import verify_files
from service.core.files.text_store import TextStore
from service.core.index.device_segment import DeviceSegment
from service.core.index.devices import ScanDevice
from service.core.index.libraries import load_library
from service.core.index.protocol import Segment
from service.core.types import Floats, Halves, Indices, Rows

ENCODER, QUERY_ENCODER, TOKENIZER = "encoder.onnx", "query_encoder.onnx", "tokenizer.json"
BASE_SEGMENT = "segments/base.index"
VOTE_WEIGHTS = "values/weights.npy"
CLICKS = "instances/clicks.npy"
LABEL_DETAILS = "labels/details"


@dataclass(frozen=True, kw_only=True)
class QueryEncoder:
    """The graph that encodes queries, where it is another one than the keys', and its facts."""

    facts: EncoderFacts
    graph: Path


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
    clicks: Rows  # instances that were posted, ascending
    label_ids: TextStore
    label_texts: TextStore
    label_details: LabelDetails
    vote_weights: Floats | None = None  # of `indices`; None: every vote weighs 1
    novel: NovelFiles | None = None
    items: ItemFiles | None = None
    reranker: RerankerFiles | None = None
    device: ScanDevice | None = None  # that searches the keys and live rows; None: the processor

    @property
    def query_encoder(self) -> QueryEncoder | None:
        """The graph that encodes queries, None if it is the keys' own."""
        facts = self.manifest.query_encoder
        if facts is None:
            return None
        return QueryEncoder(facts=facts, graph=self.folder / QUERY_ENCODER)

    @property
    def instances(self) -> int:
        """N, the number of instances."""
        return self.manifest.memory.instances

    @property
    def labels(self) -> int:
        """L, the number of labels."""
        return self.manifest.memory.labels


def open_bundle(folder: Path, *, verify: bool = True, device: ScanDevice | None = None) -> Bundle:
    """Verify and open a bundle; its keys are searched exactly by `device` if one is given.

    A child process may pass `verify=False` for a bundle that its parent has verified. Raises
    `BundleMissing`, `BundleAltered` or `BundleUnsupported`, naming the file.
    """
    facts = manifest.read(folder)
    if verify:
        verify_files(folder, facts.files)
    _check_query_encoder(folder, facts)
    keys: Halves = text_store.mapped(folder / "keys.npy")
    bundle = Bundle(
        folder=folder,
        manifest=facts,
        keys=keys,
        segment=_open_segment(folder, facts, keys, device),
        indptr=text_store.mapped(folder / "values/indptr.npy"),
        indices=text_store.mapped(folder / "values/indices.npy"),
        vote_weights=(
            text_store.mapped(folder / VOTE_WEIGHTS) if VOTE_WEIGHTS in facts.files else None
        ),
        instance_texts=TextStore(folder / "instances/texts"),
        clicks=(
            text_store.mapped(folder / CLICKS) if CLICKS in facts.files else np.zeros(0, np.int64)
        ),
        label_ids=TextStore(folder / "labels/ids"),
        label_texts=TextStore(folder / "labels/texts"),
        label_details=LabelDetails(
            TextStore(folder / LABEL_DETAILS) if f"{LABEL_DETAILS}.bin" in facts.files else None
        ),
        novel=None
        if facts.novel is None
        else irene_files.read(
            folder, facts.novel, labels=facts.memory.labels, dimension=facts.encoder.dimension
        ),
        items=None
        if facts.items is None
        else item_files.read(folder, facts.items, dimension=facts.encoder.dimension),
        reranker=None if facts.reranker is None else reranker_files.read(folder, facts.reranker),
        device=device,
    )
    _check_shapes(bundle)
    return bundle


def _open_segment(
    folder: Path, facts: Manifest, keys: Halves, device: ScanDevice | None
) -> Segment:
    """The index over the keys: the bundle's graph, or the keys themselves on a device."""
    instances, dimension = facts.memory.instances, facts.encoder.dimension
    if device is not None:
        return DeviceSegment(device, keys, cuts=[instances])
    library, rows = load_library(facts.index.library), instances + facts.memory.labels
    return library.open(folder / BASE_SEGMENT, rows=rows, dimension=dimension)


def _check_query_encoder(folder: Path, facts: Manifest) -> None:
    """Raise `BundleAltered` where the query encoder's file is missing or its vectors do not fit."""
    queries = facts.query_encoder
    if queries is None:
        return
    if QUERY_ENCODER not in facts.files:
        raise BundleAltered(f"{folder}: the manifest lists no file {QUERY_ENCODER}")
    if queries.dimension != facts.encoder.dimension:
        raise BundleAltered(
            f"{folder / manifest.FILE_NAME}: the query encoder has {queries.dimension} dimensions,"
            f" the keys have {facts.encoder.dimension}"
        )


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
    if bundle.vote_weights is not None:
        shapes[VOTE_WEIGHTS] = (bundle.vote_weights.shape, (facts.memory.votes,))
    if f"{LABEL_DETAILS}.bin" in facts.files:
        shapes[LABEL_DETAILS] = (len(TextStore(bundle.folder / LABEL_DETAILS)), bundle.labels)
    for name, (actual, expected) in shapes.items():
        if actual != expected:
            raise BundleAltered(f"{bundle.folder / name} has shape {actual}, expected {expected}")

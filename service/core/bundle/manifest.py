"""The bundle's manifest, `manifest.json`: facts about the bundle, and the checksums of its files.

The manifest also holds a checksum of its own content, so an edit of any value is noticed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import orjson
from pydantic import Field, TypeAdapter
from pydantic.dataclasses import dataclass as checked_dataclass

from service.core.config import STRICT
from service.core.errors import BundleAltered, BundleMissing, NotInBundle
from service.core.files.checksums import FileFacts
from service.core.files.versioned_json import checked, read_document
from service.core.index.libraries import IndexParameters
from service.core.types import PredictOptions

FORMAT = "keymatch-bundle"
VERSION = 1
FILE_NAME = "manifest.json"
UNQUANTIZED = "none"
EXACT_QUANTIZATION = "static-int8"  # sums of integers are the same in any order


@checked_dataclass(frozen=True, kw_only=True, config=STRICT)
class EncoderFacts:
    """The encoder's name, its limits, and the prompts that it puts before each text.

    `fingerprint` is the SHA-256 over graph, tokenizer, limits and prompts. `batch_invariant` is
    false if a text's vector depends on the other texts of its batch by more than rounding (dynamic
    int8 uses one activation scale for the whole batch); such an encoder encodes texts one by one.
    """

    name: str
    fingerprint: str
    dimension: int
    max_tokens: int
    quantization: str
    batch_invariant: bool
    query_prompt: str = ""
    label_prompt: str = ""

    @property
    def same_bits_in_batches(self) -> bool:
        """Whether a text has the same vector in every batch, to the last bit."""
        return self.quantization == EXACT_QUANTIZATION

    @property
    def floating_point(self) -> bool:
        """Whether the graph computes in floating point throughout, as a GPU needs it."""
        return self.quantization == UNQUANTIZED


@checked_dataclass(frozen=True, kw_only=True, config=STRICT)
class MemoryFacts:
    """Sizes of the memory: N instances, L labels, and the votes in V's instance rows.

    `version` is the sequence number of the last write in a snapshot, 0 for an exported bundle.
    """

    instances: int
    labels: int
    votes: int
    version: int


@checked_dataclass(frozen=True, kw_only=True, config=STRICT)
class IndexFacts:
    """The index library and its parameters; the fields are those of `IndexParameters`."""

    library: str
    m: int
    ef_construction: int
    ef: int

    def parameters(self) -> IndexParameters:
        """Return these facts as the parameters of the index library."""
        return IndexParameters(
            library=self.library, m=self.m, ef_construction=self.ef_construction, ef=self.ef
        )


@checked_dataclass(frozen=True, kw_only=True, config=STRICT)
class PredictorFacts:
    """Temperature tau, and the defaults of b (`depth`) and lambda (`memorization`)."""

    tau: float
    depth: int
    memorization: float

    def options(self, base: PredictOptions, **requested: Any) -> PredictOptions:
        """Return `base` with the requested lambda and b, or these defaults where they are None."""
        defaults = {"memorization": self.memorization, "depth": self.depth}
        chosen = {name: value for name, value in requested.items() if value is not None}
        return replace(base, **{**defaults, **chosen})


@checked_dataclass(frozen=True, kw_only=True, config=STRICT)
class Refinement:
    """The numbers of IRENE's Algorithm 1, and of our extensions; see `encoding.irene`.

    `shortlist` is K, the number of similar seen labels to look at. A seen label survives if its
    classifier scores the new label's text at least `text_threshold` (tau0); if it also scores the
    query at least `query_threshold` (tau1), it counts twice.

    The other numbers are extensions, with defaults that reproduce the paper:

    - `pooling`: a temperature above 0 replaces the three best survivors by the weighted mean of
      all survivors' classifiers;
    - `residual`: share of each survivor's own text vector that is subtracted before pooling;
    - `strength`: how far the key moves from E(z_u), at 0, to C(u), at 1;
    - `query_weight`: weight with which the query's vector is added to the key;
    - `length`, `query_length`: length of the key without and with a query.
    """

    shortlist: int
    text_threshold: float
    query_threshold: float
    pooling: float = 0.0
    residual: float = 0.0
    strength: float = 1.0
    query_weight: float = 0.0
    length: float = 1.0
    query_length: float = 1.0


@checked_dataclass(frozen=True, kw_only=True, config=STRICT)
class NovelFacts:
    """How the keys of novel labels are computed: the kind of combiner, and Algorithm 1's numbers.

    `fingerprint` is the SHA-256 over these numbers, the combiner and the classifiers.
    """

    combiner: str
    refinement: Refinement
    fingerprint: str


@checked_dataclass(frozen=True, kw_only=True, config=STRICT)
class ItemIndexFacts(IndexFacts):
    """The index over the keys of many items.

    `recall` is the share of the truly nearest items that it found for queries when it was built.
    """

    recall: float


@checked_dataclass(frozen=True, kw_only=True, config=STRICT)
class ItemFacts:
    """The item memory: its number of items, and how many of them a query attends to.

    `fingerprint` is the SHA-256 over `attended` and the fusion's graphs. `format` is that of the
    items' files (`item_files`); manifests of format 1 do not name it.
    """

    items: Annotated[int, Field(ge=0)]
    attended: Annotated[int, Field(ge=1)]
    fingerprint: str
    index: ItemIndexFacts | None = None  # None: all items are scanned
    format: int = 1


@checked_dataclass(frozen=True, kw_only=True, config=STRICT)
class RerankerFacts:
    """The second ranking: what its trees read, and what a sum of them says.

    Trees rank the best `candidates` of the memory once more. They were learned from what it
    retrieves at the settings `predictor`. The sum s of all trees becomes the probability that the
    label is relevant: 1 / (1 + exp(-(slope s + intercept))). `unknown_rarity` is that of a word
    that no label had. `fingerprint` is the SHA-256 over all this, the trees and the words.
    """

    candidates: Annotated[int, Field(ge=1)]
    features: list[str]  # the columns that the trees read, in their order
    trees: Annotated[int, Field(ge=1)]
    slope: Annotated[float, Field(gt=0.0)]
    intercept: float
    unknown_rarity: float
    predictor: PredictorFacts
    fingerprint: str = ""


@checked_dataclass(frozen=True, kw_only=True, config=STRICT)
class LearnedFacts:
    """What the training data holds of a label log already: the events of `log` up to `version`.

    The service replays them nevertheless, since a data set has no metadata of labels.
    """

    log: str
    version: int


@checked_dataclass(frozen=True, kw_only=True, config=STRICT)
class Manifest:
    """The content of `manifest.json`, except its own checksum."""

    format: str
    version: int
    name: str
    created: str
    dataset: str
    encoder: EncoderFacts
    memory: MemoryFacts
    index: IndexFacts
    predictor: PredictorFacts
    metrics: dict[str, float]
    libraries: dict[str, str]
    files: dict[str, FileFacts]
    log: str  # id of the label log that a snapshot was taken from, "" for an exported bundle
    log_chain: str | None = None  # of a snapshot: the log's chain at its version, hexadecimal
    novel: NovelFacts | None = None  # None: a novel label's key is the vector of its text
    query_encoder: EncoderFacts | None = None  # None: queries are encoded by `encoder` too
    items: ItemFacts | None = None  # None: queries are not fused with items
    learned: LearnedFacts | None = None  # None: the training data has nothing of a label log
    reranker: RerankerFacts | None = None  # None: the memory's ranking is the only one

    def options(
        self, base: PredictOptions, *, rerank: bool | None = None, **requested: Any
    ) -> PredictOptions:
        """Return `base` with the requested lambda, b and second ranking.

        Where they are None, with the bundle's: it ranks a second time if it can. Raises
        `NotInBundle` where that is requested of a bundle that cannot.
        """
        if rerank and self.reranker is None:
            raise NotInBundle("second ranking", field="rerank")
        candidates = 0 if self.reranker is None or rerank is False else self.reranker.candidates
        return self.predictor.options(replace(base, candidates=candidates), **requested)


_ADAPTER = TypeAdapter(Manifest)


def write(manifest: Manifest, folder: Path) -> None:
    """Write `manifest.json` with the checksum of its own content."""
    content = as_document(manifest)
    document = {"sha256": digest_of(content), **content}
    (folder / FILE_NAME).write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2) + b"\n")


def read(folder: Path) -> Manifest:
    """Read and check `manifest.json`.

    Raises `BundleMissing`, `BundleUnsupported` (another format or version) or `BundleAltered`.
    """
    path = folder / FILE_NAME
    if not path.exists():
        raise BundleMissing(f"{path} is missing: {folder} is not a bundle")
    content = read_document(path, format_name=FORMAT, version=VERSION)
    if content.pop("sha256", None) != digest_of(content):
        raise BundleAltered(f"{path} differs from its own checksum")
    return checked(_ADAPTER, content, path=path)


def as_document(manifest: Manifest) -> dict[str, Any]:
    """Return the manifest as plain JSON values; facts that are None are left out."""
    document: dict[str, Any] = _ADAPTER.dump_python(manifest, mode="json", exclude_none=True)
    return document


def fingerprint(manifest: Manifest) -> str:
    """Return the SHA-256 over the manifest, and so over the checksums of all files."""
    return digest_of(as_document(manifest))


def digest_of(content: Mapping[str, Any]) -> str:
    """Return the SHA-256 over the content in canonical form: compact JSON with sorted keys."""
    return hashlib.sha256(orjson.dumps(content, option=orjson.OPT_SORT_KEYS)).hexdigest()

"""The bundle's manifest, `manifest.json`: facts about the bundle, and the checksums of its files.

The manifest also holds a checksum of its own content, so an edit of any value is noticed. `ranges`
has the range of each field. A value out of range is refused, and the error names the field.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Annotated, Any

import orjson
from pydantic import Field, TypeAdapter
from pydantic.dataclasses import dataclass as checked_dataclass

from service.core.bundle import ranges
from service.core.config import STRICT
from service.core.errors import BundleAltered, BundleMissing
from service.core.files.folder_facts import FileFacts, checked, parse_document, read_bytes
from service.core.index.frozen_segment import FrozenSegment, equal_path, open_segment
from service.core.index.libraries import IndexParameters, load_library
from service.core.types import ScoreKind, Spelling

FORMAT = "keymatch-bundle"
VERSION = 1
FILE_NAME = "manifest.json"
UNQUANTIZED = "none"
EXACT_QUANTIZATION = "static-int8"  # sums of integers are the same in any order


@checked_dataclass(frozen=True, kw_only=True, config=STRICT)
class EncoderFacts:
    """The encoder's name, its limits, and the prompts that it puts before each text.

    `fingerprint` is the SHA-256 over graph, tokenizer, limits and prompts. `batch_invariant` is
    false if the other texts of a batch change a text's vector by more than rounding. Dynamic int8
    does that: it uses one activation scale per batch. Such an encoder encodes texts one by one.
    """

    name: ranges.Text
    fingerprint: ranges.Text
    dimension: ranges.Dimension
    max_tokens: ranges.Tokens
    quantization: ranges.Text
    batch_invariant: bool
    query_prompt: ranges.Text
    label_prompt: ranges.Text

    @property
    def same_bits_in_batches(self) -> bool:
        """Whether a text has bit for bit the same vector in every batch."""
        return self.quantization == EXACT_QUANTIZATION

    @property
    def floating_point(self) -> bool:
        """Whether the graph computes only in floating point, which a GPU needs."""
        return self.quantization == UNQUANTIZED


@checked_dataclass(frozen=True, kw_only=True, config=STRICT)
class MemoryFacts:
    """The sizes of the memory: N instances, L labels, and the number of votes in V's instance rows.

    `version` is the sequence number of a snapshot's last write, and 0 for an exported bundle.
    """

    instances: ranges.RowCount
    labels: ranges.RowCount
    votes: ranges.Votes
    version: ranges.EventNumber

    @property
    def rows(self) -> int:
        """N + L, the number of rows."""
        return self.instances + self.labels


@checked_dataclass(frozen=True, kw_only=True, config=STRICT)
class IndexFacts:
    """The index library and its `IndexParameters`.

    `recall` is the share of the truly nearest keys that searches with `ef` found when the graph was
    built. `nodes` is the number of distinct keys. `builder` decides the graph's bits; see
    `GraphLibrary.builder`.
    """

    library: ranges.Text
    m: ranges.Edges
    ef_construction: ranges.Queue
    ef: ranges.Queue
    recall_goal: ranges.RecallGoal
    recall: ranges.Share
    nodes: ranges.RowCount
    builder: ranges.Text | None = None  # None: the bundle was made before builders were recorded

    @classmethod
    def of(cls, parameters: IndexParameters, *, recall: float, nodes: int) -> IndexFacts:
        """Return the facts of an index that was built with `parameters`."""
        builder = load_library(parameters.library).builder()
        return cls(**asdict(parameters), recall=recall, nodes=nodes, builder=builder)

    def files(self, path: str, *, rows: int) -> list[str]:
        """Return the names of the index's files: `path`, and a list of rows if any share a key."""
        shared = [equal_path(Path(path)).as_posix()] if self.nodes < rows else []
        return [path, *shared]

    def open(self, path: Path, *, rows: int, dimension: int) -> FrozenSegment:
        """Open the index over `rows` vectors at `path`; raises `BundleAltered`."""
        return open_segment(
            path, library=self.library, rows=rows, nodes=self.nodes, dimension=dimension
        )

    def __str__(self) -> str:
        """Return the recall as a sentence, with advice if it misses the goal."""
        found = f"{self.recall:.4f} of the nearest keys found with ef {self.ef}"
        if self.recall >= self.recall_goal:
            return found
        return (
            f"{found}, less than the goal of {self.recall_goal:g}: build a denser graph (--m,"
            " --ef-construction)"
        )

    def parameters(self) -> IndexParameters:
        """Return these facts as the parameters of the index library."""
        names = [field.name for field in fields(IndexParameters)]
        return IndexParameters(**{name: getattr(self, name) for name in names})


@checked_dataclass(frozen=True, kw_only=True, config=STRICT)
class PartFacts:
    """The number of rows in a part of the keys, and of distinct keys, the nodes of its graph."""

    rows: ranges.RowCount
    nodes: ranges.RowCount


@checked_dataclass(frozen=True, kw_only=True, config=STRICT)
class PredictorFacts:
    """The temperature tau, and the defaults of b (`depth`) and lambda (`memorization`).

    `words` is what shared words add to the cosine of a row that the encoder was trained on. Without
    it, rows are found by their vectors alone, as by bundles that were made before. `hubs` is the
    share of a key's hubness that is subtracted from its similarity (`index.hubs`).
    """

    tau: ranges.Temperature
    depth: ranges.Depth
    memorization: ranges.Share
    words: ranges.WordShare | None = None
    hubs: ranges.Share = 0.0

    def __str__(self) -> str:
        """Return the numbers in words, for messages."""
        words = "off" if self.words is None else f"{self.words:g}"
        return (
            f"lambda {self.memorization:g}, b {self.depth}, tau {self.tau:g}, words {words} and"
            f" hubs {self.hubs:g}"
        )


@checked_dataclass(frozen=True, kw_only=True, config=STRICT)
class Refinement:
    """The numbers of IRENE's Algorithm 1 and of our extensions; see `encoding.irene`.

    `shortlist` is K, the number of similar seen labels to look at. A seen label survives if its
    classifier scores the new label's text at least `text_threshold` (tau0); if it also scores the
    query at least `query_threshold` (tau1), it counts twice.

    The other numbers are extensions. Their defaults reproduce the paper:

    - `pooling`: a temperature above 0 replaces the three best survivors by the weighted mean of
      all survivors' classifiers;
    - `residual`: share of each survivor's own text vector that is subtracted before pooling;
    - `strength`: how far the key moves from E(z_u), at 0, to C(u), at 1;
    - `query_weight`: weight with which the query's vector is added to the key;
    - `length`, `query_length`: length of the key without and with a query.
    """

    shortlist: ranges.Depth
    text_threshold: ranges.Cosine
    query_threshold: ranges.Cosine
    pooling: ranges.Factor = 0.0
    residual: ranges.Share = 0.0
    strength: ranges.Share = 1.0
    query_weight: ranges.Factor = 0.0
    length: ranges.Length = 1.0
    query_length: ranges.Length = 1.0


@checked_dataclass(frozen=True, kw_only=True, config=STRICT)
class NovelFacts:
    """How the keys of novel labels are computed: the kind of combiner, and Algorithm 1's numbers.

    `fingerprint` is the SHA-256 over these numbers, the combiner and the classifiers.
    """

    combiner: ranges.Text
    refinement: Refinement
    fingerprint: ranges.Text


@checked_dataclass(frozen=True, kw_only=True, config=STRICT)
class ItemFacts:
    """The number of items in the item memory, and how many of them a query attends to.

    `fingerprint` is the SHA-256 over `attended` and the graphs of the fusion. A memory of many
    items has an `index` over their keys, whose recall was measured on queries.
    """

    items: ranges.RowCount
    attended: ranges.Attended
    fingerprint: ranges.Text
    index: IndexFacts | None = None  # None: all items are scanned


@checked_dataclass(frozen=True, kw_only=True, config=STRICT)
class RerankerFacts:
    """The reranker: the features that its trees read, and the meaning of their sum.

    The trees reorder the memory's best `candidates`. They were trained on what the memory retrieves
    with the settings `predictor`. The sum s of all trees becomes the probability that the label is
    relevant: 1 / (1 + exp(-(slope s + intercept))). `unknown_rarity` is the rarity of a word that
    occurs in no label. `fingerprint` is the SHA-256 over these facts, the trees and the words.
    """

    candidates: ranges.CandidateCount
    features: list[ranges.Text]  # the columns that the trees read, in this order
    trees: ranges.Trees
    slope: ranges.Slope
    intercept: ranges.Intercept
    unknown_rarity: ranges.Factor
    predictor: PredictorFacts
    fingerprint: ranges.Text = ""


@checked_dataclass(frozen=True, kw_only=True, config=STRICT)
class ConfidenceFacts:
    """A network that turns features of a query's labels into confidences, for one kind of score.

    `features` [F] are read as deviations from `means` [F], in units of `scales` [F]. `hidden`
    [H, F + 1] and `output` [H + 1] are weights; the last of each row is added. See
    `prediction.confidence`.
    """

    features: list[ranges.Text]
    means: list[ranges.Finite]
    scales: list[ranges.Scale]
    hidden: list[list[ranges.Finite]]
    output: list[ranges.Finite]


@checked_dataclass(frozen=True, kw_only=True, config=STRICT)
class LearnedFacts:
    """The part of a label log that the training data already contains: up to `version` of `log`.

    The service replays these events all the same, because a data set has no metadata of labels.
    """

    log: ranges.Text
    version: ranges.EventNumber


@checked_dataclass(frozen=True, kw_only=True, config=STRICT)
class SplitFacts:
    """Which rows of the data set are instances, by split, and what all their pairs weigh together.

    `test` rows are in the memory once the settings were chosen and measured without them. Figures
    on them say nothing about new queries. Rows that `left_out` counts are in the data set alone.
    """

    train: ranges.RowCount
    test: ranges.RowCount
    left_out: ranges.RowCount
    weight: ranges.Weight
    left_out_weight: ranges.Weight

    def __str__(self) -> str:
        """Return the numbers as a sentence."""
        of_test = f" and {self.test:,} test rows" if self.test else " rows"
        rows = f"{self.train:,} training{of_test} are in the memory (weight {self.weight:,.0f})"
        if not self.left_out:
            return f"{rows}, none is left out"
        return f"{rows}, {self.left_out:,} rows are left out (weight {self.left_out_weight:,.0f})"


@checked_dataclass(frozen=True, kw_only=True, config=STRICT)
class Manifest:
    """The content of `manifest.json`, without its own checksum."""

    format: ranges.Text
    version: ranges.Count
    name: ranges.Text
    created: ranges.Text
    dataset: ranges.Text
    encoder: EncoderFacts
    memory: MemoryFacts
    index: IndexFacts
    predictor: PredictorFacts
    metrics: dict[str, ranges.Finite]
    libraries: dict[str, ranges.Text]
    files: dict[ranges.FileName, FileFacts]
    log: ranges.Text  # id of the label log of a snapshot, "" for an exported bundle
    log_chain: ranges.Chain  # of a snapshot: the log's chain at its version
    novel: NovelFacts | None = None  # None: a novel label's key is the vector of its text
    items: ItemFacts | None = None  # None: queries are not fused with items
    # The digest of the data set (`Dataset.digest`); None: made by an earlier version.
    data: ranges.Text | None = None
    split: SplitFacts | None = None  # None: the bundle was not made from a data set with splits
    learned: LearnedFacts | None = None  # None: the training data do not come from a label log
    reranker: RerankerFacts | None = None  # None: only the memory ranks labels
    spelling: Spelling = "off"  # the default; a snapshot keeps its bundle's
    confidence: dict[ScoreKind, ConfidenceFacts] | None = None  # None: not fitted
    # Of the keys, see `index.key_parts`; None: they are not divided.
    parts: Annotated[list[PartFacts], Field(min_length=1, max_length=ranges.MOST_PARTS)] | None = (
        None
    )

    @property
    def key_parts(self) -> Sequence[PartFacts]:
        """The parts of the keys; there are none if the keys are not divided."""
        return self.parts or ()

    @property
    def score_kind(self) -> ScoreKind:
        """The kind of score in answers, unless the request sets `rerank`."""
        return "votes" if self.reranker is None else "probability"


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
    return parse(read_bytes(path), place=path)


def parse(content: bytes, *, place: Path | str) -> Manifest:
    """Check the content of a `manifest.json`; errors name its `place`, a path or a URL.

    Raises `BundleUnsupported` (another format or version) or `BundleAltered`.
    """
    document = parse_document(content, place=place, format_name=FORMAT, version=VERSION)
    if document.pop("sha256", None) != digest_of(document):
        raise BundleAltered(f"{place} differs from its own checksum")
    return checked(_ADAPTER, document, path=place)


def as_document(manifest: Manifest) -> dict[str, Any]:
    """Return the manifest as plain JSON values, without facts that are None."""
    document: dict[str, Any] = _ADAPTER.dump_python(manifest, mode="json", exclude_none=True)
    return document


def fingerprint(manifest: Manifest) -> str:
    """Return the SHA-256 over the manifest. It covers all files, as their checksums are in it."""
    return digest_of(as_document(manifest))


def digest_of(content: Mapping[str, Any]) -> str:
    """Return the SHA-256 over `content` as canonical JSON: compact, with sorted keys."""
    return hashlib.sha256(orjson.dumps(content, option=orjson.OPT_SORT_KEYS)).hexdigest()

"""An exported encoder on disk: everything that a bundle needs of a checkpoint, without torch.

| file                 | content                                                                 |
|----------------------|-------------------------------------------------------------------------|
| `encoder.onnx`       | the graph: token ids -> unit vectors, pooling and normalisation inside  |
| `query_encoder.onnx` | optional: a smaller graph of the same space, for queries only           |
| `tokenizer.json`     | the tokenizer, in the format of the Rust library `tokenizers`           |
| `encoder.json`       | format, version, facts, predictor defaults, parity, origin, checksums   |
| `label_keys.npy`     | optional: Z, fp16 [L, d], if the system learned label keys of their own |
| `novel/*`            | optional: IRENE's combiner and classifiers, see `irene_files`           |
| `items/*`            | optional: OAK's fusion and memory bank, see `export.item_files`          |
| `reranker*`          | optional: a second ranking, `training.checkpoints.second_ranking`       |
| `README.md`          | the model card                                                          |
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import orjson
from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass as checked_dataclass

from export.item_files import ItemMemoryFacts
from service.core.bundle import irene_files
from service.core.bundle.bundle import ENCODER, QUERY_ENCODER, TOKENIZER, QueryEncoder
from service.core.bundle.irene_files import NovelFiles
from service.core.bundle.manifest import EncoderFacts, NovelFacts
from service.core.config import STRICT
from service.core.encoding.encoder import OnnxEncoder
from service.core.errors import BundleAltered, InvalidInput
from service.core.files.atomic import write_file
from service.core.files.checksums import FileFacts, file_facts, verify_files
from service.core.files.text_store import mapped
from service.core.files.versioned_json import checked, read_document
from service.core.types import Halves
from training.checkpoints.choices import Choices
from training.checkpoints.label_keys import LABEL_KEYS
from training.datasets.dataset import Dataset
from training.datasets.pair_weights import Relevance

FORMAT = "keymatch-encoder"
VERSION = 1
FILE, CARD = "encoder.json", "README.md"


@checked_dataclass(frozen=True, kw_only=True, config=STRICT)
class PredictorDefaults:
    """Inference settings stored with an encoder: tau, b (`depth`) and lambda (`memorization`).

    `relevance` is how the weights of the data's pairs count in the votes; None where it was not
    chosen.
    """

    tau: float
    depth: int
    memorization: float
    relevance: Relevance | None = None

    @classmethod
    def of(cls, choices: Choices) -> PredictorDefaults:
        """Return the settings that were chosen for a checkpoint on held-out rows."""
        return cls(
            tau=choices.tau,
            depth=choices.depth,
            memorization=choices.memorization,
            relevance=choices.relevance,
        )


@checked_dataclass(frozen=True, kw_only=True, config=STRICT)
class Origin:
    """The training run that an encoder comes from.

    `mixing` is the share of the trained weights in a mixture with the pretrained ones
    (`training.models.wise_ft`). `metrics` are in percent, on test rows; empty if not measured.
    """

    recipe: str
    base: str
    dataset: str
    seed: int
    held_out_rows: int
    steps: int
    seconds: float
    tokens: int
    hardware: dict[str, Any]
    mixing: float = 1.0
    metrics: dict[str, float] = field(default_factory=dict)


@checked_dataclass(frozen=True, kw_only=True, config=STRICT)
class LabelFacts:
    """What the system learned for individual labels, so that it fits this label set only.

    `digest` is the SHA-256 of the label ids, see `digest_of`; `keys` says whether
    `label_keys.npy` exists; `novel` describes the files in `novel/`, None without them.
    """

    digest: str
    keys: bool = False
    novel: NovelFacts | None = None


@checked_dataclass(frozen=True, kw_only=True, config=STRICT)
class Description:
    """The content of `encoder.json`.

    `weights` is the digest of the checkpoint that was exported (`weights_digest`); None in what
    earlier versions exported.
    """

    format: str
    version: int
    encoder: EncoderFacts
    predictor: PredictorDefaults
    parity: dict[str, float]  # agreement with torch, see `parity.Parity`
    libraries: dict[str, str]
    files: dict[str, FileFacts]
    origin: Origin | None = None
    labels: LabelFacts | None = None
    query_encoder: EncoderFacts | None = None  # None: queries are encoded by `encoder` too
    items: ItemMemoryFacts | None = None  # None: a query attends to no items
    weights: str | None = None


_ADAPTER = TypeAdapter(Description)


@dataclass(frozen=True, kw_only=True)
class ExportedEncoder:
    """A verified folder with its description."""

    folder: Path
    description: Description

    @property
    def graph(self) -> Path:
        """Path of `encoder.onnx`."""
        return self.folder / ENCODER

    @property
    def tokenizer(self) -> Path:
        """Path of `tokenizer.json`."""
        return self.folder / TOKENIZER

    @property
    def query_encoder(self) -> QueryEncoder | None:
        """The graph that encodes queries, None if it is `graph`."""
        facts = self.description.query_encoder
        if facts is None:
            return None
        return QueryEncoder(facts=facts, graph=self.folder / QUERY_ENCODER)

    def open_encoder(self) -> OnnxEncoder:
        """Load the graph that encodes keys."""
        return OnnxEncoder(self.folder, self.description.encoder)

    def open_query_encoder(self) -> OnnxEncoder:
        """Load the graph that encodes queries."""
        queries = self.query_encoder
        if queries is None:
            return self.open_encoder()
        return OnnxEncoder(self.folder, queries.facts, graph=queries.graph.name)

    @property
    def agreement(self) -> str:
        """The agreement of the vectors with torch's, for the console."""
        return f"cosine to torch {self.description.parity['parity.cosine_mean']:.4f}"

    @property
    def parity_summary(self) -> str:
        """The agreement with torch in one line, with P@1 on the sample it was measured on."""
        parity = self.description.parity
        return (
            f"{self.agreement}, P@1 on the parity sample"
            f" {parity['parity.sample_P@1']:.2f} (torch {parity['parity.sample_P@1_torch']:.2f})"
        )

    @property
    def bundle_metrics(self) -> dict[str, float]:
        """What a bundle says of its encoder: no P@1, whose sample may be of another data set."""
        return {
            name: value for name, value in self.description.parity.items() if "_P@1" not in name
        }

    def label_keys(self, dataset: Dataset) -> Halves | None:
        """Return Z [L, d], or None if a label's key is the vector of its text.

        Raises `InvalidInput` if the encoder was trained on other labels than the data set's.
        """
        labels = self._label_facts(dataset)
        return None if labels is None or not labels.keys else mapped(self.folder / LABEL_KEYS)

    def novel(self, dataset: Dataset) -> NovelFiles | None:
        """Return IRENE's combiner and classifiers, or None without them.

        Raises `InvalidInput` if the encoder was trained on other labels than the data set's.
        """
        labels = self._label_facts(dataset)
        if labels is None or labels.novel is None:
            return None
        dimension = self.description.encoder.dimension
        return irene_files.read(
            self.folder, labels.novel, labels=len(dataset.labels), dimension=dimension
        )

    def _label_facts(self, dataset: Dataset) -> LabelFacts | None:
        labels = self.description.labels
        if labels is not None and labels.digest != digest_of(dataset):
            raise InvalidInput(
                f"{self.folder} was trained on other labels than those of {dataset.name}:"
                " give the data set that it was trained on"
            )
        return labels


def digest_of(dataset: Dataset) -> str:
    """Return the SHA-256 over the ids of a data set's labels, in order."""
    return hashlib.sha256("\0".join(dataset.labels.uids).encode()).hexdigest()


def describe(
    folder: Path,
    *,
    encoder: EncoderFacts,
    predictor: PredictorDefaults,
    parity: Mapping[str, float],
    libraries: Mapping[str, str],
    origin: Origin | None,
    labels: LabelFacts | None = None,
    query_encoder: EncoderFacts | None = None,
    items: ItemMemoryFacts | None = None,
    weights: str | None = None,
) -> Description:
    """Write `encoder.json` with the checksums of all files that the folder holds already."""
    description = Description(
        format=FORMAT,
        version=VERSION,
        encoder=encoder,
        predictor=predictor,
        parity=dict(parity),
        libraries=dict(libraries),
        files=file_facts(folder),
        origin=origin,
        labels=labels,
        query_encoder=query_encoder,
        items=items,
        weights=weights,
    )
    return _write(description, folder)


def add_query_facts(
    description: Description,
    folder: Path,
    *,
    query_encoder: EncoderFacts,
    parity: Mapping[str, float],
    libraries: Mapping[str, str],
) -> Description:
    """Write `encoder.json` of an encoder that has got a query encoder, measured by `parity`."""
    return _write(
        replace(
            description,
            parity={**description.parity, **parity},
            libraries=dict(libraries),
            files=file_facts(folder),
            query_encoder=query_encoder,
        ),
        folder,
    )


def _write(description: Description, folder: Path) -> Description:
    document = _ADAPTER.dump_python(description, mode="json", exclude_none=True)
    write_file(folder / FILE, orjson.dumps(document, option=orjson.OPT_INDENT_2) + b"\n")
    return description


def is_exported(folder: Path) -> bool:
    """Return whether a folder holds an exported encoder, as opposed to a checkpoint."""
    return (folder / FILE).is_file()


def open_exported(folder: Path) -> ExportedEncoder:
    """Read and verify an exported encoder.

    Raises `BundleMissing`, `BundleUnsupported` (another format or version) or `BundleAltered`,
    naming the file.
    """
    path = folder / FILE
    document = read_document(path, format_name=FORMAT, version=VERSION)
    description = checked(_ADAPTER, document, path=path)
    needed = [ENCODER, TOKENIZER]
    if description.query_encoder is not None:
        needed.append(QUERY_ENCODER)
    for name in needed:
        if name not in description.files:
            raise BundleAltered(f"{path}: files: {name} is missing")
    verify_files(folder, description.files)
    return ExportedEncoder(folder=folder, description=description)

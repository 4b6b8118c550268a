"""An exported encoder on disk: all that a bundle takes from a checkpoint, readable without torch.

| file             | content                                                                |
|------------------|------------------------------------------------------------------------|
| `encoder.onnx`   | token ids -> unit vectors; pools and normalises inside                 |
| `tokenizer.json` | the Rust tokenizer                                                     |
| `encoder.json`   | format, version, facts, predictor defaults, parity, origin, checksums  |
| `label_keys.npy` | Z, fp16 [L, d], of a system whose labels are no texts                  |
| `novel/*`        | of a checkpoint with a combiner, see `service.core.bundle.irene_files`        |
| `README.md`      | the model card                                                         |
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass as checked_dataclass

from service.core.bundle import irene_files
from service.core.bundle.irene_files import NovelFiles
from service.core.bundle.manifest import EncoderFacts, NovelFacts
from service.core.config import STRICT
from service.core.errors import BundleAltered, InvalidInput
from service.core.files.atomic import write_file
from service.core.files.checksums import FileFacts, file_facts, verify_files
from service.core.files.text_store import mapped
from service.core.files.versioned_json import checked, read_document
from service.core.types import Halves
from training.checkpoints.choices import Choices
from training.checkpoints.label_keys import LABEL_KEYS
from training.datasets.dataset import Dataset

FORMAT = "keymatch-encoder"
VERSION = 1
FILE, GRAPH, TOKENIZER, CARD = "encoder.json", "encoder.onnx", "tokenizer.json", "README.md"


@checked_dataclass(frozen=True, kw_only=True, config=STRICT)
class PredictorDefaults:
    """Inference settings stored with an encoder: tau, lambda, b."""

    tau: float
    depth: int
    memorization: float

    @classmethod
    def of(cls, choices: Choices) -> PredictorDefaults:
        """The settings that were chosen for an encoder on held-out rows."""
        return cls(tau=choices.tau, depth=choices.depth, memorization=choices.memorization)


@checked_dataclass(frozen=True, kw_only=True, config=STRICT)
class Origin:
    """Where a trained encoder comes from.

    `mixing` is the share of the trained weights (`training.models.wise_ft`); `metrics` are
    percent of test rows, if it was scored.
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
    """What was learned of the labels themselves, and the SHA-256 of their ids: it fits no others.

    `keys` says whether they stand in the memory by keys of their own.
    """

    digest: str
    keys: bool = False
    novel: NovelFacts | None = None


@checked_dataclass(frozen=True, kw_only=True, config=STRICT)
class Description:
    """Everything that `encoder.json` says."""

    format: str
    version: int
    encoder: EncoderFacts
    predictor: PredictorDefaults
    parity: dict[str, float]  # against torch, see `parity.Parity`
    libraries: dict[str, str]
    files: dict[str, FileFacts]
    origin: Origin | None = None
    labels: LabelFacts | None = None


@dataclass(frozen=True, kw_only=True)
class ExportedEncoder:
    """A folder whose files are what its description says."""

    folder: Path
    description: Description

    @property
    def graph(self) -> Path:
        """encoder.onnx."""
        return self.folder / GRAPH

    def label_keys(self, dataset: Dataset) -> Halves | None:
        """Z, [L, d], None where the labels' texts stand for them; raises `InvalidInput`."""
        labels = self._labels(dataset)
        return None if labels is None or not labels.keys else mapped(self.folder / LABEL_KEYS)

    def novel(self, dataset: Dataset) -> NovelFiles | None:
        """What represents novel labels, None without it; raises `InvalidInput` for other labels."""
        labels = self._labels(dataset)
        if labels is None or labels.novel is None:
            return None
        dimension = self.description.encoder.dimension
        return irene_files.read(
            self.folder, labels.novel, labels=len(dataset.labels), dimension=dimension
        )

    def _labels(self, dataset: Dataset) -> LabelFacts | None:
        labels = self.description.labels
        if labels is not None and labels.digest != digest_of(dataset):
            raise InvalidInput(
                f"{self.folder} has learned labels of its own, which are not those of"
                f" {dataset.name}: give the data set that it was trained on"
            )
        return labels

    @property
    def tokenizer(self) -> Path:
        """tokenizer.json."""
        return self.folder / TOKENIZER


_ADAPTER = TypeAdapter(Description)


def digest_of(dataset: Dataset) -> str:
    """SHA-256 over the ids of a data set's labels, in order."""
    return hashlib.sha256("\0".join(dataset.labels.uids).encode()).hexdigest()


def is_exported(folder: Path) -> bool:
    """Whether a folder holds an exported encoder, and no checkpoint."""
    return (folder / FILE).is_file()


def describe(
    folder: Path,
    *,
    encoder: EncoderFacts,
    predictor: PredictorDefaults,
    parity: Mapping[str, float],
    libraries: Mapping[str, str],
    origin: Origin | None,
    labels: LabelFacts | None = None,
) -> Description:
    """Write `encoder.json` over what the folder holds already."""
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
    )
    document = _ADAPTER.dump_python(description, mode="json", exclude_none=True)
    write_file(folder / FILE, orjson.dumps(document, option=orjson.OPT_INDENT_2) + b"\n")
    return description


def open_exported(folder: Path) -> ExportedEncoder:
    """Read and verify a folder.

    Raises `BundleMissing`, `BundleUnsupported` (another format or version) or `BundleAltered`,
    naming the file.
    """
    path = folder / FILE
    document = read_document(path, format_name=FORMAT, version=VERSION)
    description = checked(_ADAPTER, document, path=path)
    for name in (GRAPH, TOKENIZER):
        if name not in description.files:
            raise BundleAltered(f"{path}: files: {name} is missing")
    verify_files(folder, description.files)
    return ExportedEncoder(folder=folder, description=description)

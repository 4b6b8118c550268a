"""An exported encoder on disk: all that a bundle takes from a checkpoint, readable without torch.

| file             | content                                                                |
|------------------|------------------------------------------------------------------------|
| `encoder.onnx`   | token ids -> unit vectors; pools and normalises inside                 |
| `tokenizer.json` | the Rust tokenizer                                                     |
| `encoder.json`   | format, version, facts, predictor defaults, parity, origin, checksums  |
| `README.md`      | the model card                                                         |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass as checked_dataclass

from service.core.config import STRICT
from service.core.document import checked, read_document
from service.core.durable import write_file
from service.core.errors import BundleAltered
from service.core.manifest import Checksums, EncoderFacts, FileFacts, file_facts
from training.choices import Choices, LearnedMemorization

FORMAT, VERSION = "keymatch-encoder", 1
FILE, GRAPH, TOKENIZER, CARD = "encoder.json", "encoder.onnx", "tokenizer.json", "README.md"


@checked_dataclass(frozen=True, kw_only=True, config=STRICT)
class PredictorDefaults:
    """How the encoder wants to be predicted with: tau, b and lambda, and a learned lambda."""

    tau: float
    depth: int
    memorization: float
    learned: LearnedMemorization | None = None

    @classmethod
    def of(cls, choices: Choices, learned: LearnedMemorization | None = None) -> PredictorDefaults:
        """What was chosen for an encoder, and what was learned."""
        return cls(
            tau=choices.tau,
            depth=choices.depth,
            memorization=choices.memorization,
            learned=learned,
        )


@checked_dataclass(frozen=True, kw_only=True, config=STRICT)
class Origin:
    """Where a trained encoder comes from.

    `mixing` is the trained weights' share, see `training.mixing`; `metrics` are percent of test
    rows, if it was scored.
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


@dataclass(frozen=True, kw_only=True)
class ExportedEncoder:
    """A folder whose files are what its description says."""

    folder: Path
    description: Description

    @property
    def graph(self) -> Path:
        """encoder.onnx."""
        return self.folder / GRAPH

    @property
    def tokenizer(self) -> Path:
        """tokenizer.json."""
        return self.folder / TOKENIZER


_ADAPTER = TypeAdapter(Description)


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
) -> Description:
    """Write `encoder.json` over the graph and the tokenizer that the folder holds already."""
    files = file_facts(folder)
    description = Description(
        format=FORMAT,
        version=VERSION,
        encoder=encoder,
        predictor=predictor,
        parity=dict(parity),
        libraries=dict(libraries),
        files={name: files[name] for name in (GRAPH, TOKENIZER)},
        origin=origin,
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
    document = read_document(path, kind=FORMAT, readable=(VERSION,))
    description = checked(_ADAPTER, document, path=path)
    for name in (GRAPH, TOKENIZER):
        if name not in description.files:
            raise BundleAltered(f"{path}: files: {name} is missing")
    Checksums(folder=folder, files=description.files).verify()
    return ExportedEncoder(folder=folder, description=description)

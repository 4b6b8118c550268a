"""The content of `encoder.json`: what an exported encoder is, and where it comes from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import Any

import orjson
from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass as checked_dataclass

from export.item_files import ItemMemoryFacts
from service.core.bundle.manifest import EncoderFacts, NovelFacts
from service.core.config import STRICT
from service.core.files.atomic import write_file
from service.core.files.checksums import FileFacts, file_facts
from service.core.files.versioned_json import checked, read_document
from training.checkpoints.choices import Choices
from training.datasets.pair_weights import Relevance

FORMAT = "keymatch-encoder"
VERSION = 1
FILE = "encoder.json"


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


def read(folder: Path) -> Description:
    """Read the description of a folder's encoder.

    Raises `BundleMissing`, `BundleUnsupported` (another format or version) or `BundleAltered`,
    naming the file.
    """
    path = folder / FILE
    return checked(_ADAPTER, read_document(path, format_name=FORMAT, version=VERSION), path=path)


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

"""Inference settings stored with an encoder: tau, lambda, b, relevance, and IRENE's numbers.

| file            | content                                                         |
|-----------------|-----------------------------------------------------------------|
| `keymatch.json` | temperature, lambda, b and relevance, chosen on held-out rows    |
| `novel.json`    | IRENE's combiner, and its settings for novel labels              |

`export` reads them too, without torch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, TypeVar

import orjson
from pydantic import TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as checked_dataclass

from service.core.bundle.manifest import Refinement
from service.core.config import STRICT
from service.core.errors import InvalidData
from service.core.files.atomic import write_file
from training.datasets.pair_weights import Relevance

CHOICES, NOVEL = "keymatch.json", "novel.json"

Settings = TypeVar("Settings")


@checked_dataclass(frozen=True, kw_only=True, config=STRICT)
class Choices:
    """The system that trained the encoder, and the memory's temperature tau, lambda and b.

    `relevance` is how the weights of the data's pairs count in the votes of the memory; None where
    it was not chosen: as the data have them.
    """

    system: str
    tau: float
    memorization: float
    depth: int
    relevance: Relevance | None = None


@checked_dataclass(frozen=True, kw_only=True, config=STRICT)
class NovelChoices:
    """A checkpoint's combiner (`training.systems.irene.combiner`) and Algorithm 1's numbers.

    `classifiers` says where those of the known labels are: in the head's table, as IRENE's are, or
    in the label keys, half of which are UniDEC's.
    """

    combiner: str
    heads: int
    residual: bool
    refinement: Refinement
    classifiers: Literal["table", "keys"] = "table"


# For an encoder without choices; the temperature is RAE-XMC's.
UNCHOSEN = Choices(system="encoder", tau=0.04, memorization=0.5, depth=200)


def as_document(settings: Choices | NovelChoices) -> dict[str, Any]:
    """The settings as they are written; what was not chosen is left out."""
    return {name: value for name, value in asdict(settings).items() if value is not None}


def write_choices(folder: Path, choices: Choices) -> None:
    """Write the choices into a checkpoint's folder."""
    _write(folder / CHOICES, choices)


def read_choices(folder: Path) -> Choices | None:
    """The choices of a checkpoint, None where it has none; raises `InvalidData`."""
    return _read(folder / CHOICES, TypeAdapter(Choices).validate_json, writer="train")


def write_novel(folder: Path, novel: NovelChoices) -> None:
    """Write IRENE's settings into a checkpoint's folder."""
    _write(folder / NOVEL, novel)


def read_novel(folder: Path) -> NovelChoices | None:
    """IRENE's settings of a checkpoint, None where it has none; raises `InvalidData`."""
    return _read(folder / NOVEL, TypeAdapter(NovelChoices).validate_json, writer="train")


def _write(path: Path, settings: Choices | NovelChoices) -> None:
    write_file(path, orjson.dumps(as_document(settings), option=orjson.OPT_INDENT_2) + b"\n")


def _read(path: Path, parse: Callable[[bytes], Settings], *, writer: str) -> Settings | None:
    if not path.is_file():
        return None
    try:
        return parse(path.read_bytes())
    except (orjson.JSONDecodeError, TypeError, ValidationError) as error:
        raise InvalidData(path, f"is not what `{writer}` writes: {error}") from error

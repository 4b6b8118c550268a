"""Inference settings stored with an encoder: tau, lambda, b, and IRENE's numbers.

| file            | content                                                         |
|-----------------|-----------------------------------------------------------------|
| `keymatch.json` | temperature, lambda and b, chosen on held-out rows               |
| `novel.json`    | IRENE's combiner, and its settings for novel labels              |

`export` reads them too, without torch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

import orjson
from pydantic import TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as checked_dataclass

from service.core.bundle.manifest import Refinement
from service.core.config import STRICT
from service.core.errors import InvalidData
from service.core.files.atomic import write_file

CHOICES, NOVEL = "keymatch.json", "novel.json"

Settings = TypeVar("Settings")


@dataclass(frozen=True, kw_only=True)
class Choices:
    """The system that trained the encoder, and the memory's temperature tau, lambda and b."""

    system: str
    tau: float
    memorization: float
    depth: int


@checked_dataclass(frozen=True, kw_only=True, config=STRICT)
class NovelChoices:
    """A checkpoint's combiner (`training.systems.irene.combiner`) and Algorithm 1's numbers."""

    combiner: str
    heads: int
    residual: bool
    refinement: Refinement


# For an encoder without choices; the temperature is RAE-XMC's.
UNCHOSEN = Choices(system="encoder", tau=0.04, memorization=0.5, depth=200)


def write_choices(folder: Path, choices: Choices) -> None:
    """Write the choices into a checkpoint's folder."""
    _write(folder / CHOICES, choices)


def read_choices(folder: Path) -> Choices | None:
    """The choices of a checkpoint, None where it has none; raises `InvalidData`."""
    return _read(folder / CHOICES, lambda content: Choices(**orjson.loads(content)), writer="train")


def write_novel(folder: Path, novel: NovelChoices) -> None:
    """Write IRENE's settings into a checkpoint's folder."""
    _write(folder / NOVEL, novel)


def read_novel(folder: Path) -> NovelChoices | None:
    """IRENE's settings of a checkpoint, None where it has none; raises `InvalidData`."""
    return _read(folder / NOVEL, TypeAdapter(NovelChoices).validate_json, writer="train")


def _write(path: Path, settings: Choices | NovelChoices) -> None:
    write_file(path, orjson.dumps(asdict(settings), option=orjson.OPT_INDENT_2) + b"\n")


def _read(path: Path, parse: Callable[[bytes], Settings], *, writer: str) -> Settings | None:
    if not path.is_file():
        return None
    try:
        return parse(path.read_bytes())
    except (orjson.JSONDecodeError, TypeError, ValidationError) as error:
        raise InvalidData(path, f"is not what `{writer}` writes: {error}") from error

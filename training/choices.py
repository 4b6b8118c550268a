"""How a trained encoder wants to be predicted with: two small files in its folder.

| file            | content                                                         |
|-----------------|-----------------------------------------------------------------|
| `keymatch.json` | temperature, lambda and b that were chosen on held-out rows      |
| `adaptive.json` | a lambda of each query's own, if `adapt` has learned one         |

They are read without torch, by `export` too.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

import orjson

from service.core.durable import write_file
from service.core.errors import InvalidData

CHOICES, ADAPTIVE = "keymatch.json", "adaptive.json"


@dataclass(frozen=True, kw_only=True)
class Choices:
    """The system that trained, the memory's temperature, lambda and b."""

    system: str
    tau: float
    memorization: float
    depth: int


@dataclass(frozen=True, kw_only=True)
class LearnedMemorization:
    """lambda(q) by feature name, see `service.core.adaptive`; learned at this tau and b."""

    weights: dict[str, float]
    bias: float
    tau: float
    depth: int


def write_choices(folder: Path, choices: Choices) -> None:
    """Add what was chosen."""
    write_file(folder / CHOICES, orjson.dumps(asdict(choices), option=orjson.OPT_INDENT_2) + b"\n")


def read_choices(folder: Path) -> Choices | None:
    """What was chosen, None for a folder of another origin; raises `InvalidData`."""
    path = folder / CHOICES
    if not path.is_file():
        return None
    try:
        return Choices(**orjson.loads(path.read_bytes()))
    except (orjson.JSONDecodeError, TypeError) as error:
        raise InvalidData(path, f"is not what `train` writes: {error}") from error


def write_learned(folder: Path, learned: LearnedMemorization) -> None:
    """Add a learned lambda."""
    document = orjson.dumps(asdict(learned), option=orjson.OPT_INDENT_2)
    write_file(folder / ADAPTIVE, document + b"\n")


def read_learned(folder: Path) -> LearnedMemorization | None:
    """What was learned, None where nothing was; raises `InvalidData`."""
    path = folder / ADAPTIVE
    if not path.is_file():
        return None
    try:
        return LearnedMemorization(**orjson.loads(path.read_bytes()))
    except (orjson.JSONDecodeError, TypeError) as error:
        raise InvalidData(path, f"is not what `adapt` writes: {error}") from error

"""A trained encoder on disk: an ordinary sentence-transformers folder, and what Keymatch adds.

| file                         | content                                                         |
|------------------------------|-----------------------------------------------------------------|
| all of sentence-transformers | weights, tokenizer, pooling; `SentenceTransformer(folder)` opens |
| `keymatch.json`              | temperature, lambda and b that were chosen on held-out rows     |
| `adaptive.json`              | a lambda of each query's own, if `adapt` has learned one        |
| `own.safetensors`            | a system's own parameters, such as one-versus-all classifiers   |
"""

from __future__ import annotations

import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

import orjson
from safetensors.torch import save_file
from torch import nn

from service.core.durable import new_folder, write_file
from service.core.errors import InvalidData
from service.core.types import Role
from training.encoder import TorchEncoder, without_progress_bars

CHOICES, ADAPTIVE, OWN = "keymatch.json", "adaptive.json", "own.safetensors"


@dataclass(frozen=True, kw_only=True)
class Choices:
    """How a trained encoder wants to be predicted with."""

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


def write_model(encoder: TorchEncoder, folder: Path, *, own: nn.Module | None) -> None:
    """Replace `folder` by the encoder as it is now."""
    model = encoder.model
    model.prompts = {"query": encoder.prompts[Role.QUERY], "document": encoder.prompts[Role.LABEL]}
    new = folder.with_name(f".{folder.name}.new")
    shutil.rmtree(new, ignore_errors=True)
    with new_folder(new) as partial:
        with without_progress_bars():
            model.save(str(partial), create_model_card=False)
        if own is not None:
            weights = {name: value.detach().cpu() for name, value in own.state_dict().items()}
            save_file(weights, partial / OWN)
    shutil.rmtree(folder, ignore_errors=True)
    new.rename(folder)


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

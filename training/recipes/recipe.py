"""Recipes: every number of a training run, read from TOML.

    [encoder]     what is trained, and how much of a text it reads
    [ngrams]      character n-grams beside the transformer, none by default
    [batch]       what is contrasted with what
    [refresh]     how often all texts are encoded again for hard negatives and clusters
    [optimizer]   AdamW, its schedule and its precision
    [validation]  the held-out slice of the training rows that every choice is made on
    [system]      `name` and the system's own numbers, see `systems/`

A recipe may say `extends = "other"` and only what differs; `--set table.key=value` stands above.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from importlib import resources
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field
from pydantic.dataclasses import dataclass

from service.core.config import (
    STRICT,
    Count,
    Natural,
    Positive,
    Share,
    parse,
    toml_value,
)
from service.core.errors import InvalidConfig
from training.batches.settings import BatchSettings, RefreshSettings
from training.models.precision import Precision
from training.models.settings import EncoderSettings, NgramSettings
from training.recipes import shipped
from training.selection.validation import ValidationSettings

PACKAGE = "training.recipes"


@dataclass(frozen=True, kw_only=True, config=STRICT)
class OptimizerSettings:
    """AdamW with linear warm-up over the share `warmup` of the steps, then linear decay.

    `accumulation` batches make a step. With `gradient_cache` a batch is encoded twice and needs the
    memory of one bucket only; `bucket_tokens` is a bucket's size, padding included.
    """

    steps: Count
    learning_rate: Positive
    own_learning_rate: Positive | None = None  # of a system's own parameters
    rows_learning_rate: Positive | None = None  # of those that move by rows; default: the former
    warmup: Share = 0.1
    weight_decay: Annotated[float, Field(ge=0.0)] = 0.01
    clip: Positive = 1.0  # the most that the gradient's norm may be
    accumulation: Count = 1
    precision: Precision = "auto"
    gradient_cache: bool = False
    bucket_tokens: Annotated[int, Field(ge=64)] = 8_192


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Recipe:
    """A run's numbers; `system` is parsed by the system that it names."""

    encoder: EncoderSettings
    optimizer: OptimizerSettings
    system: dict[str, Any]
    ngrams: NgramSettings = field(default_factory=NgramSettings)
    batch: BatchSettings = field(default_factory=BatchSettings)
    refresh: RefreshSettings = field(default_factory=RefreshSettings)
    validation: ValidationSettings = field(default_factory=ValidationSettings)
    seed: Natural = 0


def names() -> list[str]:
    """The recipes that come with Keymatch."""
    return shipped.names(PACKAGE)


def summary(name: str) -> str:
    """The first comment of a recipe that comes with Keymatch."""
    text = (resources.files(PACKAGE) / f"{name}.toml").read_text()
    head = takewhile(lambda line: line.startswith("#"), text.splitlines())
    return " ".join(line.removeprefix("#").strip() for line in head)


def load(recipe: str, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe by its name or from a `.toml` file, with `table.key=value` put above it.

    Raises `InvalidConfig` naming file, key and what is allowed.
    """
    document = read_document(recipe)
    for override in overrides:
        _override(document, override)
    return parse(Recipe, document, source=recipe)


def read_document(recipe: str, *, below: tuple[str, ...] = ()) -> dict[str, Any]:
    """The recipe's tables, those that it extends included; `below` are the recipes that led here.

    Raises `InvalidConfig` also for recipes that extend each other in a circle.
    """
    if recipe in below:
        raise InvalidConfig(f"{recipe} extends itself")
    document = shipped.read(recipe, package=PACKAGE, what="recipe")
    encoder = document.get("encoder")
    if isinstance(encoder, dict) and str(encoder.get("stage_one", "")).endswith(".toml"):
        encoder["stage_one"] = str(Path(recipe).parent / encoder["stage_one"])
    base = document.pop("extends", None)
    if base is None:
        return document
    if not isinstance(base, str):
        raise InvalidConfig(f"{recipe}: extends must be a recipe's name or a .toml file")
    if base.endswith(".toml"):
        base = str(Path(recipe).parent / base)
    return _over(read_document(base, below=(*below, recipe)), document)


def _over(base: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Tables merged key by key; another system's numbers are not inherited."""
    merged = dict(base)
    for name, value in above.items():
        known = base.get(name)
        if isinstance(known, dict) and isinstance(value, dict):
            another = name == "system" and value.get("name", known.get("name")) != known.get("name")
            value = value if another else {**known, **value}
        merged[name] = value
    return merged


def _override(document: dict[str, Any], override: str) -> None:
    key, equals, value = override.partition("=")
    parts = key.strip().split(".")
    if not equals or not all(parts) or len(parts) > 2:
        raise InvalidConfig(f"--set takes table.key=value, not {override!r}")
    table = document
    if len(parts) == 2:
        table = document.setdefault(parts[0], {})
        if not isinstance(table, dict):
            raise InvalidConfig(f"--set {override}: {parts[0]} is not a table")
    table[parts[-1]] = toml_value(value.strip())

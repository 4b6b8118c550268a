"""Recipes: all settings of a training run, read from TOML.

    [encoder]     which encoder is trained, and how much of a text it reads
    [lora]        low-rank adapters, which learn instead of the transformer, none by default
    [ngrams]      character n-grams added to the transformer's vector, none by default
    [heads]       UniDEC's two heads on the encoder, none by default
    [batch]       how many instances, positives and negatives a batch has
    [refresh]     when all texts are encoded again for hard negatives and clusters
    [optimizer]   steps, learning rates, precision
    [validation]  the rows held out of training, on which every choice is made
    [system]      `name` and the settings of that system, see `training.systems`
    [metadata]    metadata appended to the texts, as MOGIC's oracle reads it, none by default
    [guidance]    the oracle that guides the system, none by default

A recipe may extend another with `extends = "other"` and give only the keys that differ. The command
line's `--set table.key=value` overrides both. Each table is documented where it is used, except
`[optimizer]`, which is documented here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import field
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass

from service.core.config import STRICT, Count, Natural, Positive, Share, parse, toml_value
from service.core.errors import InvalidConfig
from training.batches.batch import BatchSettings, RefreshSettings
from training.datasets.metadata_texts import MetadataSettings
from training.models.precision import Precision
from training.models.settings import (
    EncoderSettings,
    GuidanceSettings,
    HeadSettings,
    LoraSettings,
    NgramSettings,
)
from training.recipes import shipped
from training.selection.validation import ValidationSettings

GENERAL, MEASURED = "training.recipes", "training.lab.recipes"
PACKAGES = (GENERAL, MEASURED)
# Keys that exclude each other: setting one drops the other if the extended recipe has it.
RIVALS = {
    "steps": {"epochs"},
    "epochs": {"steps"},
    "every": {"checks", "every_epochs"},  # of `[validation]` and of `[refresh]`
    "checks": {"every"},
    "every_epochs": {"every"},
}


@dataclass(frozen=True, kw_only=True, config=STRICT)
class OptimizerSettings:
    """AdamW with linear warm-up over the share `warmup` of the steps, then linear decay.

    A run takes `steps`, or as many as `epochs` need, but ends after `minutes`; the learning rate
    falls to zero by then. Each step sums the gradients of `accumulation` batches. Texts are encoded
    in buckets of at most `bucket_tokens` tokens, padding included. With `gradient_cache` a batch is
    encoded twice, but only one bucket's activations are in memory at a time.
    """

    steps: Count | None = None
    epochs: Positive | None = None
    minutes: Positive | None = None
    learning_rate: Positive
    head_learning_rate: Positive | None = None  # of the system's head; default: learning_rate
    sparse_learning_rate: Positive | None = None  # of its sparse tables; default: the head's
    warmup: Share = 0.1
    weight_decay: Annotated[float, Field(ge=0.0)] = 0.01
    clip: Positive = 1.0  # the largest norm of a gradient
    accumulation: Count = 1
    precision: Precision = "auto"
    gradient_cache: bool = False
    bucket_tokens: Annotated[int, Field(ge=64)] = 8_192

    @model_validator(mode="after")
    def _has_a_length(self) -> Self:
        if (self.steps is None) == (self.epochs is None):
            raise ValueError("give either steps or epochs")
        return self


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Recipe:
    """The settings of a run; `system` is parsed by the system that it names."""

    encoder: EncoderSettings
    optimizer: OptimizerSettings
    system: dict[str, Any]
    lora: LoraSettings = field(default_factory=LoraSettings)
    ngrams: NgramSettings = field(default_factory=NgramSettings)
    heads: HeadSettings = field(default_factory=HeadSettings)
    batch: BatchSettings = field(default_factory=BatchSettings)
    refresh: RefreshSettings = field(default_factory=RefreshSettings)
    validation: ValidationSettings = field(default_factory=ValidationSettings)
    metadata: MetadataSettings = field(default_factory=MetadataSettings)
    guidance: GuidanceSettings = field(default_factory=GuidanceSettings)
    seed: Natural = 0

    @model_validator(mode="after")
    def _can_learn(self) -> Self:
        if self.lora.rank and self.encoder.frozen:
            raise ValueError("lora.rank trains the transformer, and encoder.frozen forbids it")
        return self

    def steps_of(self, epochs: float, *, rows: int) -> int:
        """Return the number of steps that draw each training row `epochs` times, at least 1."""
        drawn = self.batch.instances * self.optimizer.accumulation  # rows of one step
        return max(1, math.ceil(epochs * rows / drawn))


def names(*packages: str) -> list[str]:
    """Return the names of the recipes in `packages`, by default of all shipped recipes."""
    return shipped.names(*(packages or PACKAGES))


def summary(name: str) -> str:
    """Return the leading comment of a shipped recipe."""
    text = shipped.text(name, *PACKAGES)
    head = takewhile(lambda line: line.startswith("#"), text.splitlines())
    return " ".join(line.removeprefix("#").strip() for line in head)


def load(recipe: str, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe by its name or from a `.toml` file; `overrides` are `table.key=value`.

    Raises `InvalidConfig` naming file, key and allowed values.
    """
    document = shipped.read_extended(recipe, opened=_opened, merged=_merged, what="recipe")
    for override in overrides:
        _override(document, override)
    return parse(Recipe, document, source=recipe)


def _opened(recipe: str) -> dict[str, Any]:
    """Return a recipe's own tables; a path in `encoder.stage_one` is relative to its file."""
    document = shipped.read(recipe, *PACKAGES, what="recipe")
    encoder = document.get("encoder")
    if isinstance(encoder, dict) and str(encoder.get("stage_one", "")).endswith(shipped.SUFFIX):
        encoder["stage_one"] = str(Path(recipe).parent / encoder["stage_one"])
    return document


def _merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Merge tables key by key; if the system changes, the former one's settings are dropped."""
    merged = dict(base)
    for name, value in changes.items():
        known = base.get(name)
        if isinstance(known, dict) and isinstance(value, dict):
            another = name == "system" and value.get("name", known.get("name")) != known.get("name")
            dropped = (
                {*known} if another else {rival for key in value for rival in RIVALS.get(key, ())}
            )
            value = {**{key: known[key] for key in known if key not in dropped}, **value}
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
        for rival in RIVALS.get(parts[1], ()):
            table.pop(rival, None)
    table[parts[-1]] = toml_value(value.strip())

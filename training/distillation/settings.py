"""Settings of a distillation, and the recipe of the training loop that they amount to."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from service.core.errors import InvalidInput
from training.checkpoints.choices import Choices
from training.models.precision import Precision
from training.models.settings import EncoderSettings, NgramSettings
from training.recipes.recipe import OptimizerSettings, Recipe
from training.selection.validation import ValidationSettings

SYSTEM = "distill"


@dataclass(frozen=True, kw_only=True)
class DistillationSettings:
    """How a student is made.

    Attributes
    ----------
    layers
        How many of the teacher's layers the student has; 0 is a static table of tokens.
    start
        A student to go on from, in place of the teacher's layers: a further stage of training.
    ngrams
        Buckets of a new table of character n-grams; 0: none.
    steps
        The number of batches.
    batch
        Texts of a batch.
    query_share
        The share of a batch that are training queries; the others are labels and unlabelled texts.
    learning_rate
        AdamW's highest learning rate.
    similarity
        Weight of the loss on similarities to keys, beside the loss on vectors.
    keys
        How many random keys of the memory that loss compares over, anew in each batch.
    tau
        The temperature of that loss.
    held_out
        Training rows that choose the best student, at most a fifth; their texts do not train.
    every
        Steps between two measurements of the held-out rows.
    seed
        The seed of batches and held-out rows.
    precision
        Arithmetic in training: auto is the fastest on this hardware.
    """

    layers: int
    start: str | None = None
    ngrams: int = 0
    steps: int = 3_000
    batch: int = 512
    query_share: float = 0.4
    learning_rate: float = 5e-4
    similarity: float = 0.0
    keys: int = 4_096
    tau: float = 0.05
    held_out: int = 1_000
    every: int = 500
    seed: int = 0
    precision: Precision = "auto"

    def __post_init__(self) -> None:
        """Raise `InvalidInput` for the first number out of range."""
        for name in ("layers", "ngrams", "similarity", "held_out", "seed"):
            _require(name, getattr(self, name) >= 0, "at least 0")
        for name in ("steps", "keys", "every"):
            _require(name, getattr(self, name) >= 1, "at least 1")
        for name in ("learning_rate", "tau"):
            _require(name, getattr(self, name) > 0, "above 0")
        _require("batch", self.batch >= 2, "at least 2")
        _require("query_share", 0 <= self.query_share <= 1, "between 0 and 1")


def _require(name: str, holds: bool, range_: str) -> None:
    if not holds:
        raise InvalidInput(f"{name.replace('_', '-')}: must be {range_}")


def loop_recipe(
    settings: DistillationSettings,
    *,
    teacher: str,
    fingerprint: str,
    max_tokens: int,
    choices: Choices,
    unlabelled: str = "",
) -> Recipe:
    """The recipe of the training loop; held-out rows are ranked with the teacher's `choices`.

    `unlabelled` is the digest of the unlabelled texts.
    """
    return Recipe(
        encoder=EncoderSettings(
            name=teacher, query_tokens=max_tokens, label_tokens=max_tokens, dropout=0.0
        ),
        ngrams=NgramSettings(buckets=settings.ngrams),
        optimizer=OptimizerSettings(
            steps=settings.steps,
            learning_rate=settings.learning_rate,
            warmup=0.05,
            precision=settings.precision,
            bucket_tokens=1_024,  # activations of a bucket fit the processor's second-level cache
        ),
        validation=ValidationSettings(
            rows=settings.held_out,
            every=settings.every,
            untrained=False,
            depth=choices.depth,
            memorization=(choices.memorization,),
        ),
        system={
            "name": SYSTEM,
            "teacher_fingerprint": fingerprint,
            "unlabelled": unlabelled,
            **asdict(settings),
        },
        seed=settings.seed,
    )

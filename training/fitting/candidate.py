"""A candidate of `fit`, and the numbers that candidates share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from training.fitting.situation import Situation

UNIDEC_CHOICES = 4  # longer vectors, eleven shares of the heads, keys with classifiers and without
MOST_EPOCHS = 40


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A recipe with the settings that fit the data, and a sentence for the reader."""

    name: str
    recipe: str
    summary: str
    settings: tuple[str, ...]  # table.key=value
    encodings: float = 1.0  # how often it encodes all texts, beside its steps
    choices: int = 1  # how often it chooses on the held-out rows, in units of one with one vector
    replaceable: bool = False  # whether another candidate can use its time better if it is short


Proposal = Callable[[Situation], Candidate | None]


def heads(situation: Situation) -> tuple[str, ...]:
    """UniDEC's heads, both as wide as the encoder; novel labels are represented by their texts."""
    return (
        f"heads.encoder={situation.width}",
        f"heads.classifier={situation.width}",
        "system.choose_novel=false",
    )

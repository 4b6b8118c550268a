"""Inference settings stored with an encoder: tau, lambda, b, relevance, and IRENE's numbers.

| file            | content                                                         |
|-----------------|-----------------------------------------------------------------|
| `keymatch.json` | temperature, lambda, b and relevance, chosen on held-out rows    |
| `novel.json`    | IRENE's combiner, and its settings for novel labels              |

`export` reads them too, without torch.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic.dataclasses import dataclass as checked_dataclass

from service.core.bundle import ranges
from service.core.bundle.manifest import PredictorFacts, Refinement
from service.core.config import STRICT
from training.datasets.pair_weights import Relevance
from training.documents import checked, read_json, write_json

CHOICES, NOVEL = "keymatch.json", "novel.json"

Settings = TypeVar("Settings")


@checked_dataclass(frozen=True, kw_only=True, config=STRICT)
class Choices:
    """The system that trained the encoder, and the memory's temperature tau, lambda and b.

    `words` is what shared words add to a row's cosine. An encoder that was trained before words
    counted has None: they do not count. `hubs` is the share of a key's hubness that is subtracted
    from its similarity (`service.core.index.hubs`). `relevance` is the scale of the pairs' weights
    in the memory's votes. If it was not chosen, it is None: weights count as the data set has them.
    """

    system: str
    tau: ranges.Temperature
    memorization: ranges.Share
    depth: ranges.Depth
    words: ranges.WordShare | None = None
    hubs: ranges.Share = 0.0
    relevance: Relevance | None = None

    @property
    def predictor(self) -> PredictorFacts:
        """The choices that a bundle's manifest has."""
        return PredictorFacts(
            tau=self.tau,
            depth=self.depth,
            memorization=self.memorization,
            words=self.words,
            hubs=self.hubs,
        )


@checked_dataclass(frozen=True, kw_only=True, config=STRICT)
class NovelChoices:
    """A checkpoint's combiner (`training.systems.irene.combiner`) and IRENE's Algorithm 1 settings.

    `classifiers` says where the known labels' classifiers are: in the head's table, as in IRENE, or
    in the label keys, whose second part is UniDEC's classifier.
    """

    combiner: str
    heads: int
    residual: bool
    refinement: Refinement
    classifiers: Literal["table", "keys"] = "table"


# The defaults for an encoder without choices; the temperature is RAE-XMC's.
UNCHOSEN = Choices(system="encoder", tau=0.04, memorization=0.5, depth=200, words=0.0)


def as_document(settings: Choices | NovelChoices) -> dict[str, Any]:
    """Return the settings in the form that is written; settings of None are left out."""
    return {name: value for name, value in asdict(settings).items() if value is not None}


def write_choices(folder: Path, choices: Choices) -> None:
    """Write the choices into a checkpoint's folder."""
    write_json(folder / CHOICES, as_document(choices))


def read_choices(folder: Path) -> Choices | None:
    """Return the choices of a checkpoint, None if it has none; raises `InvalidData`."""
    return _read(folder / CHOICES, Choices)


def write_novel(folder: Path, novel: NovelChoices) -> None:
    """Write IRENE's settings into a checkpoint's folder."""
    write_json(folder / NOVEL, as_document(novel))


def read_novel(folder: Path) -> NovelChoices | None:
    """Return IRENE's settings of a checkpoint, None if it has none; raises `InvalidData`."""
    return _read(folder / NOVEL, NovelChoices)


def _read(path: Path, kind: type[Settings]) -> Settings | None:
    return checked(kind, read_json(path), path=path, writer="train") if path.is_file() else None

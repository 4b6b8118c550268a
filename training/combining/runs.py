"""The runs that may be combined: finished ones on the same data, which hold out the same rows.

What is chosen on held-out rows counts only if no run has trained on them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from service.core.config import parse
from service.core.errors import InvalidData, InvalidInput
from training.checkpoints.run_json import (
    BEST,
    DATA_DIGEST,
    RUN,
    metadata_of_run,
    read_run_on,
)
from training.datasets.dataset import Dataset
from training.datasets.metadata_texts import with_metadata
from training.evaluation.answers import digest_of
from training.loop.training_data import split_training_data
from training.selection.validation import Slices, ValidationSettings


@dataclass(frozen=True, kw_only=True, eq=False)
class FinishedRun:
    """A run's folder, its facts, and the data with the texts that it reads."""

    folder: Path
    facts: dict[str, Any]
    dataset: Dataset
    slices: Slices

    @property
    def name(self) -> str:
        """The name of its folder."""
        return self.folder.resolve().name

    @property
    def best(self) -> Path:
        """The folder of its checkpoint."""
        return self.folder / BEST

    @property
    def seconds(self) -> float:
        """How long it trained."""
        return float(self.facts["progress"]["seconds"])


def open_runs(folders: Sequence[Path], dataset: Dataset, *, most: int) -> list[FinishedRun]:
    """The runs in these folders, 2 to `most`, in their order.

    Raises `InvalidInput` for another number of them, for one that is given twice, for runs on other
    data, and for runs that hold out other rows; `InvalidData` for what is no finished run.
    """
    if not 2 <= len(folders) <= most:
        raise InvalidInput(f"--run: give 2 to {most} runs, not {len(folders)}")
    if len({folder.resolve() for folder in folders}) < len(folders):
        raise InvalidInput("--run: each run may be given once")
    digest = digest_of(dataset)
    runs = [open_run(folder, dataset, digest=digest) for folder in folders]
    first = runs[0]
    for run in runs:
        if not np.array_equal(run.slices.held_out, first.slices.held_out):
            raise InvalidInput(
                f"{first.folder} and {run.folder} hold out different rows: train both with the"
                " same seed, validation.rows, validation.drawn and validation.labels"
            )
    return runs


def open_run(folder: Path, dataset: Dataset, *, digest: str | None = None) -> FinishedRun:
    """The run in a folder; `digest` is that of the data, where it is known.

    Raises as `open_runs`.
    """
    digest = digest or digest_of(dataset)
    facts = read_run_on(folder, dataset.name)
    if facts.get(DATA_DIGEST, digest) != digest:  # runs of earlier versions have none
        raise InvalidInput(f"{folder} was trained on other texts than those of {dataset.name!r}")
    if not (folder / BEST).is_dir():
        raise InvalidData(folder / BEST, "is missing: the run kept no checkpoint")
    source, settings = str(folder / RUN), facts.get("settings", {})
    dataset = with_metadata(dataset, metadata_of_run(facts, folder))
    validation = parse(ValidationSettings, settings.get("validation", {}), source=source)
    data = split_training_data(
        dataset, validation, seed=int(settings.get("seed", 0)), source=source
    )
    if not len(data.slices.held_out):
        raise InvalidInput(f"{folder} holds no rows out: there is nothing to choose on")
    return FinishedRun(
        folder=folder,
        facts=facts,
        dataset=dataset,
        slices=data.slices,
    )

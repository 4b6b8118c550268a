"""A finished run whose held-out rows train a reranker: its facts, vectors and retrieved keys."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from service.core.config import parse
from service.core.errors import InvalidData, InvalidInput
from training.checkpoints import trained_texts
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
from training.models.precision import Precision
from training.progress import Report
from training.scoring import Scoring, open_scoring
from training.selection.memory_choices import DEPTHS
from training.selection.validation import (
    HeldOutRetrieval,
    Slices,
    ValidationSettings,
    retrieve_held_out,
)


@dataclass(frozen=True, kw_only=True, eq=False)
class FinishedRun:
    """A run's folder, its facts, and the data set with the texts that the run reads."""

    folder: Path
    facts: dict[str, Any]
    dataset: Dataset
    slices: Slices

    @property
    def name(self) -> str:
        """The name of the run's folder."""
        return self.folder.resolve().name

    @property
    def best(self) -> Path:
        """The folder of the run's best checkpoint."""
        return self.folder / BEST

    @property
    def seconds(self) -> float:
        """How long the run trained."""
        return float(self.facts["progress"]["seconds"])


def open_run(folder: Path, dataset: Dataset) -> FinishedRun:
    """Read the run in a folder, and the rows of the data set that it holds out.

    Raises `InvalidInput` for a run on other data or without held-out rows, and `InvalidData` if the
    folder has no finished run.
    """
    facts = read_run_on(folder, dataset.name)
    if facts.get(DATA_DIGEST) != digest_of(dataset):
        raise InvalidInput(f"{folder} was trained on other texts than those of {dataset.name!r}")
    if not (folder / BEST).is_dir():
        raise InvalidData(folder / BEST, "is missing: the run kept no checkpoint")
    source, settings = str(folder / RUN), facts.get("settings", {})
    trained = trained_texts.read(folder / BEST)
    unseen = None if trained is None else trained.unseen_before(dataset.train.instances.texts)
    dataset = with_metadata(dataset, metadata_of_run(facts, folder))
    validation = parse(ValidationSettings, settings.get("validation", {}), source=source)
    data = split_training_data(
        dataset, validation, seed=int(settings.get("seed", 0)), source=source, unseen=unseen
    )
    if not len(data.slices.held_out):
        raise InvalidInput(f"{folder} holds no rows out: there is nothing to choose on")
    return FinishedRun(
        folder=folder,
        facts=facts,
        dataset=dataset,
        slices=data.slices,
    )


def scoring_of(run: FinishedRun, *, precision: Precision, report: Report) -> Scoring:
    """Encode a run's data with its best checkpoint."""
    return open_scoring(
        str(run.best), run.dataset, folder=run.best, precision=precision, report=report
    )


def held_out_of(run: FinishedRun, scoring: Scoring) -> HeldOutRetrieval:
    """Search the memory of the kept rows for each held-out row, as deep as any choice needs."""
    instances, labels = np.split(scoring.memory.keys, [len(run.dataset.train)])
    depth = max(*DEPTHS, scoring.choices.depth)
    return retrieve_held_out(scoring.dataset, run.slices, instances, labels, depth=depth)

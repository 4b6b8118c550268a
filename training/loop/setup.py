"""Sets a run up: data, model, validation and the restored state, before the first step."""

from __future__ import annotations

import hashlib
from dataclasses import asdict
from functools import partial
from pathlib import Path

import numpy as np
import orjson
from rich.console import Console

from service.core.errors import InvalidConfig, InvalidData
from training.batches.batch import AddedLabels
from training.checkpoints.saved_state import LAST, NOTHING_TO_RESUME, newest
from training.datasets.dataset import Dataset
from training.datasets.metadata_texts import with_metadata
from training.loop import state
from training.loop.batch_source import BatchSource, Neighbourhoods
from training.loop.build_model import build_model
from training.loop.interruption import Interruption
from training.loop.journal import Journal
from training.loop.length import Length, length_of
from training.loop.model import TrainedModel
from training.loop.state import Progress
from training.loop.trainer import Trainer
from training.loop.training_data import TrainingData, split_training_data
from training.progress import say, status
from training.recipes.recipe import Recipe
from training.selection.validation import Validation
from training.systems.mogic.oracle import guided_system
from training.systems.registry import reads_items
from training.systems.soft_labels.system import soft_labelled
from training.systems.soft_labels.teacher import SoftLabels, teachers_soft_labels
from training.systems.system import System


def open_run(
    recipe: Recipe,
    dataset: Dataset,
    folder: Path,
    *,
    source: str,
    resume: bool,
    console: Console,
    interruption: Interruption | None = None,
) -> Trainer:
    """Set a run up in `folder`; with `resume` it goes on from its last saved state.

    `source` is the recipe's name, for error messages. Raises `InvalidConfig` for a recipe that does
    not fit the data, and `InvalidData` for a folder that holds another run (without `resume`: any).
    """
    saved = saved_state(folder, resume=resume)
    plain, dataset = dataset, with_metadata(dataset, recipe.metadata)
    data = split_training_data(dataset, recipe.validation, seed=recipe.seed, source=source)
    length = length_of(recipe, rows=len(data.rows))
    _say_sizes(recipe, dataset, rows=len(data.rows), steps=length.steps, console=console)
    _require_refresh(recipe, steps=length.steps, source=source)
    soft = _soft_labels(recipe, plain, data, source=source, console=console)
    guide = partial(_taught, recipe=recipe, soft=soft, dataset=plain)
    model = build_model(recipe, dataset, data, guide=guide, source=source, console=console)
    identity = run_identity(recipe, dataset)
    progress, neighbourhoods = Progress(), Neighbourhoods()
    if saved is not None:
        progress, neighbourhoods = state.load(saved, run=identity, model=model)
    return Trainer(
        recipe=recipe,
        identity=identity,
        folder=folder,
        length=length,
        model=model,
        batches=BatchSource(
            recipe=recipe, data=data, neighbourhoods=neighbourhoods, added=_added(soft, recipe)
        ),
        validation=validation_of(recipe, dataset, data, tau=model.system.memory_tau),
        journal=_journal(folder, model, length, progress, console=console),
        progress=progress,
        interruption=interruption or Interruption(),
    )


def _soft_labels(
    recipe: Recipe, dataset: Dataset, data: TrainingData, *, source: str, console: Console
) -> SoftLabels | None:
    """The soft labels of the recipe's teacher for the rows that train; None where it has none."""
    if recipe.soft_labels.teacher is None:
        return None
    with status(console, f"scoring labels by the teacher {recipe.soft_labels.teacher}"):
        return teachers_soft_labels(
            recipe.soft_labels,
            dataset,
            data.pairs,
            data.rows,
            validation=recipe.validation,
            seed=recipe.seed,
            source=source,
        )


def _added(soft: SoftLabels | None, recipe: Recipe) -> AddedLabels | None:
    return None if soft is None else soft.added(recipe.soft_labels)


def _journal(
    folder: Path, model: TrainedModel, length: Length, progress: Progress, *, console: Console
) -> Journal:
    """The run's journal, which the main process alone shows."""
    return Journal(
        folder,
        console=console,
        steps=length.steps,
        step=progress.step,
        silent=not model.accelerator.is_main_process,
    )


def _taught(
    system: System,
    recipe: Recipe,
    soft: SoftLabels | None,
    dataset: Dataset,
    *,
    dimension: int,
    source: str,
    console: Console,
) -> System:
    """The system with the recipe's soft labels and the guidance of its oracle."""
    system = soft_labelled(system, recipe.soft_labels, soft, source=source)
    return guided_system(
        system, recipe.guidance, dataset, dimension=dimension, source=source, console=console
    )


def _say_sizes(
    recipe: Recipe, dataset: Dataset, *, rows: int, steps: int, console: Console
) -> None:
    if not console.quiet:
        sizes = f"{rows:,} rows, {len(dataset.labels):,} labels, {steps:,} steps"
        say(f"opening the encoder {recipe.encoder.name} for {sizes}")


def run_identity(recipe: Recipe, dataset: Dataset) -> str:
    """SHA-256 of the recipe and the training data, which tells runs apart."""
    digest = hashlib.sha256(orjson.dumps(asdict(recipe), option=orjson.OPT_SORT_KEYS))
    items = [dataset.metadata] if reads_items(recipe.system) and dataset.metadata else []
    for texts in (dataset.train.instances, dataset.labels, *items):
        for text in texts.texts:
            digest.update(text.encode() + b"\0")
    links = [dataset.train.metadata_of] if items else []
    for matrix in (dataset.train.labels_of, dataset.train.filtered, *links):
        digest.update(np.ascontiguousarray(matrix.indptr, np.int64).data)
        digest.update(np.ascontiguousarray(matrix.indices, np.int64).data)
    if recipe.batch.sampling == "weighted":
        digest.update(np.ascontiguousarray(dataset.train.labels_of.data, np.float32).data)
    return digest.hexdigest()


def saved_state(folder: Path, *, resume: bool) -> Path | None:
    """The state to go on from, None for a new run.

    Raises `InvalidData` for a new run where there is a state, and for `resume` where there is none.
    """
    saved = newest(folder / LAST)
    if saved is not None and not resume:
        raise InvalidData(folder, "already holds a run; continue it with --resume or change --out")
    if saved is None and resume:
        raise InvalidData(folder, f"holds no saved state ({LAST}): {NOTHING_TO_RESUME}")
    return saved


def _require_refresh(recipe: Recipe, *, steps: int, source: str) -> None:
    """Raise `InvalidConfig` where batches need hard negatives and no refresh would mine any."""
    refresh = recipe.refresh
    if recipe.batch.hard_negatives and not (refresh.recurs and refresh.first < steps):
        raise InvalidConfig(
            f"{source}: batch.hard_negatives needs refresh.every above 0 or refresh.every_epochs,"
            f" and refresh.first below the number of steps, {steps}; otherwise none are mined"
        )


def validation_of(
    recipe: Recipe, dataset: Dataset, data: TrainingData, *, tau: float
) -> Validation | None:
    """Validation on the held-out rows, None where there are none."""
    if not len(data.slices.held_out):
        return None
    return Validation(
        dataset=dataset,
        slices=data.slices,
        settings=recipe.validation,
        tau=tau,
        hidden=data.hidden,
    )

"""Sets up a run before its first step: data, model, validation and the restored state."""

from __future__ import annotations

import hashlib
from dataclasses import asdict
from pathlib import Path

import numpy as np
import orjson
from rich.console import Console

from service.core.errors import InvalidConfig, InvalidData
from training.checkpoints import trained_texts
from training.checkpoints.run_json import LAST, NOTHING_TO_RESUME, newest
from training.datasets.dataset import Dataset
from training.datasets.metadata_texts import with_metadata
from training.loop import state
from training.loop.batch_source import BatchSource, Neighbourhoods
from training.loop.build_model import build_model
from training.loop.interruption import Interruption
from training.loop.journal import Journal
from training.loop.state import Progress
from training.loop.trainer import Trainer, length_of
from training.loop.training_data import split_training_data
from training.progress import say
from training.recipes.recipe import Recipe
from training.selection.validation import Validation
from training.systems.registry import reads_items


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
    """Set up a run in `folder`; with `resume` it continues from its last saved state.

    `source` is the recipe's name, for error messages. Raises `InvalidConfig` for a recipe that does
    not fit the data, and `InvalidData` for a folder that holds another run (without `resume`: any).
    """
    saved = saved_state(folder, resume=resume)
    plain, dataset = dataset, with_metadata(dataset, recipe.metadata)
    first = trained_texts.of_encoder(recipe.encoder.name)
    texts = plain.train.instances.texts
    seed, unseen = recipe.seed, first.unseen(texts)
    data = split_training_data(dataset, recipe.validation, seed=seed, source=source, unseen=unseen)
    length = length_of(recipe, rows=len(data.rows))
    if not console.quiet:
        sizes = f"{len(data.rows):,} rows, {len(dataset.labels):,} labels, {length.steps:,} steps"
        say(f"opening the encoder {recipe.encoder.name} for {sizes}")
    _require_refresh(recipe, steps=length.steps, source=source)
    model = build_model(recipe, dataset, data, plain=plain, source=source, console=console)
    identity = run_identity(recipe, dataset)
    progress, neighbourhoods = Progress(), Neighbourhoods()
    if saved is not None:
        progress, neighbourhoods = state.load(saved, run=identity, model=model)
    validation = Validation(
        dataset=dataset,
        slices=data.slices,
        settings=recipe.validation,
        tau=model.system.memory_tau,
        hidden=data.hidden,
    )
    return Trainer(
        recipe=recipe,
        identity=identity,
        folder=folder,
        length=length,
        model=model,
        batches=BatchSource(recipe=recipe, data=data, neighbourhoods=neighbourhoods),
        validation=validation if len(data.slices.held_out) else None,
        trained=first.after(texts, trained=data.rows, held_out=data.slices.held_out),
        journal=Journal(
            folder,
            console=console,
            steps=length.steps,
            step=progress.step,
            silent=not model.accelerator.is_main_process,
        ),
        progress=progress,
        interruption=interruption or Interruption(),
    )


def run_identity(recipe: Recipe, dataset: Dataset) -> str:
    """Return the SHA-256 of the recipe and the training data, which identifies the run."""
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
    """Return the state to continue from, None for a new run.

    Raises `InvalidData` if a new run finds a saved state, or if `resume` finds none.
    """
    saved = newest(folder / LAST)
    if saved is not None and not resume:
        raise InvalidData(folder, "already holds a run; continue it with --resume or change --out")
    if saved is None and resume:
        raise InvalidData(folder, f"holds no saved state ({LAST}): {NOTHING_TO_RESUME}")
    return saved


def _require_refresh(recipe: Recipe, *, steps: int, source: str) -> None:
    """Raise `InvalidConfig` if batches need hard negatives and no refresh would mine any."""
    refresh = recipe.refresh
    if recipe.batch.hard_negatives and not (refresh.recurs and refresh.first < steps):
        raise InvalidConfig(
            f"{source}: batch.hard_negatives needs refresh.every above 0 or refresh.every_epochs,"
            f" and refresh.first below the number of steps, {steps}; otherwise none are mined"
        )

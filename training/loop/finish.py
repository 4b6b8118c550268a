"""Finishes a run: chooses temperature, lambda, b and label keys for the best checkpoint.

The label keys that a system learned compete with the vectors of the labels' texts: instance keys
already carry the clicks, so text vectors may complement them better. Before that, the held-out rows
choose how much UniDEC's two heads each count in a key.

Shapes: N training rows, L labels, d dimensions.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from service.core.types import Floats
from training.checkpoints.choices import UNCHOSEN, Choices, as_document, write_choices
from training.checkpoints.label_keys import LABEL_KEYS
from training.checkpoints.run_json import DATA_DIGEST, write_run
from training.datasets.dataset import Dataset
from training.datasets.pair_weights import Relevance
from training.evaluation.answers import digest_of
from training.loop.trainer import Trainer
from training.models.two_heads import TwoHeads, with_share
from training.progress import status
from training.selection.memory_choices import DEPTHS, choose_on
from training.selection.validation import Validation, criterion
from training.systems.finished import FinishedTraining

SHARES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)  # of D; 0 and 1 as ablations


def choose_for_inference(
    trainer: Trainer, *, console: Console, relevance: Relevance | None = None
) -> tuple[Choices, FinishedTraining | None]:
    """Choose on the held-out rows, and write the choices into the best checkpoint's folder.

    `relevance` is the scale of the trainer's data, if it was chosen before. Returns the choices
    and, if rows are held out, the best checkpoint's vectors.
    """
    start = Choices(
        system=str(trainer.recipe.system["name"]),
        tau=trainer.model.system.memory_tau,
        memorization=UNCHOSEN.memorization,
        depth=trainer.recipe.validation.depth,
        words=UNCHOSEN.words,
        relevance=relevance,
    )
    finished = None
    if trainer.validation is not None:
        finished = _choose(trainer, trainer.validation, start, console=console)
    choices = start if finished is None else finished.choices
    if trainer.is_main_process:
        with status(console, "choosing the system's settings"):
            message = trainer.model.system.choose_settings(finished, trainer.best)
        if message:
            trainer.journal.print(message)
        write_choices(trainer.best, choices)
    return choices, finished


def _choose(
    trainer: Trainer, validation: Validation, start: Choices, *, console: Console
) -> FinishedTraining:
    """Return the best checkpoint's choices; remove its label keys if text vectors are better."""
    model = trainer.model
    model.load_checkpoint(trainer.best)
    instances, texts = trainer.kept_vectors or model.vectors(trainer.journal.encoded)
    label_keys = model.system.label_keys(texts)
    if model.system.heads is not None:
        share = _choose_share(trainer, validation, model.system.heads, instances, label_keys)
        reweighted = partial(with_share, share=share, encoder=model.system.heads.encoder)
        instances, texts, label_keys = map(reweighted, (instances, texts, label_keys))
        with torch.no_grad():
            model.system.heads.share.fill_(share)
        trainer.write_best(mixing=1.0, label_keys=label_keys)
    candidates = [label_keys]
    if label_keys is not texts and model.system.encodes_labels:
        candidates.append(texts)
    with status(console, "choosing temperature, lambda and b"):
        tried = [_choose_with(trainer, validation, instances, keys, start) for keys in candidates]
    best = max(range(len(tried)), key=lambda place: tried[place][0])
    if candidates[best] is texts and trainer.is_main_process:
        (trainer.best / LABEL_KEYS).unlink(missing_ok=True)
    return FinishedTraining(
        validation=validation,
        instances=instances,
        labels=texts,
        keys=candidates[best],
        choices=tried[best][1],
        head_weights=model.head_weights() or {},
    )


def _choose_share(
    trainer: Trainer, validation: Validation, heads: TwoHeads, instances: Floats, labels: Floats
) -> float:
    """Return the best share of D in keys [N, d] and [L, d]; also measure each head alone."""
    scores = {}
    with status(trainer.journal.console, "choosing the shares of the two heads"):
        for share in SHARES:
            keys = (with_share(part, share, encoder=heads.encoder) for part in (instances, labels))
            measured = validation.scores(*keys)
            scores[share] = criterion(measured, trainer.recipe.validation.metrics)
            trainer.journal.shared(share, measured)
    return max(SHARES[1:-1], key=scores.__getitem__)


def _choose_with(
    trainer: Trainer, validation: Validation, instances: Floats, labels: Floats, start: Choices
) -> tuple[float, Choices]:
    """Return the best choices for keys [N, d] and [L, d], and before them their criterion."""
    settings = trainer.recipe.validation
    held_out = validation.retrieve(instances, labels, depth=max(*DEPTHS, start.depth))
    best = choose_on(
        held_out,
        start,
        metrics=settings.metrics,
        words=settings.words,
        hubs=settings.hubs,
        on_tried=trainer.journal.tried,
    )
    return criterion({best.memorization: held_out.metrics(best)}, settings.metrics), best


def write_facts(
    folder: Path,
    recipe: str,
    settings: Mapping[str, Any],
    dataset: Dataset,
    progress: Mapping[str, Any],
    choices: Choices,
    used: Mapping[str, Any],
) -> None:
    """Write the run.json of a finished run; `used` is the hardware that it was trained on."""
    facts = {
        "recipe": recipe,
        "settings": settings,
        "dataset": dataset.name,
        DATA_DIGEST: digest_of(dataset),
        "progress": progress,
        "choices": as_document(choices),
        "hardware": used,
    }
    write_run(folder, facts)

"""The runs of `fit`: the first encoder, and each candidate within its time limit.

Shapes: N training rows, L labels, d dimensions.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

from rich.console import Console

from service.core.errors import InvalidConfig
from service.core.types import Role
from training.checkpoints import trained_texts
from training.checkpoints.choices import UNCHOSEN, write_choices
from training.checkpoints.model_folder import write_model
from training.checkpoints.run_json import BEST, LAST, read_run, write_run
from training.checkpoints.trained_texts import TrainedTexts
from training.datasets.dataset import Dataset
from training.datasets.pair_weights import Relevance
from training.datasets.training_pairs import TrainingPairs
from training.evaluation.answers import FILE as UNTRAINED_ANSWERS
from training.evaluation.answers import encoded_rows, keep_untrained
from training.evaluation.encode_texts import encode_texts
from training.fitting.candidates import Candidate
from training.fitting.facts import DataFacts
from training.fitting.time_left import Cost
from training.fitting.trial import (
    METRICS,
    Measured,
    Trial,
    best_relevance,
    chosen_with,
    joined,
    measure,
    weight_trials,
)
from training.hardware import gpu_name, hardware, machine, versions
from training.loop.finish import choose_for_inference, write_facts
from training.loop.journal import LINES
from training.loop.setup import open_run
from training.loop.state import Progress
from training.loop.trainer import Trainer
from training.models.torch_encoder import TorchEncoder
from training.recipes import recipe as recipes
from training.selection.memory_choices import DEPTHS, HUBS, WORDS, choose_on
from training.selection.validation import Slices, hold_out, retrieve_held_out

SPARE, LARGEST_SPARE = 0.5, 0.1  # reserve: share of the time after the steps, of a split's
FEWEST_SECONDS = 1.0  # the shortest time for a candidate's steps on a split


def first_trial(
    encoder: TorchEncoder,
    dataset: Dataset,
    facts: DataFacts,
    folder: Path,
    *,
    name: str,
    seed: int,
) -> tuple[Trial, Cost, list[Trial]]:
    """Measure the encoder that `fit` starts from on each split, and write it as a run.

    `name` is the trial's name. The returned list holds the trials of `weight_trials`.
    """
    start, record = perf_counter(), trained_texts.of_encoder(encoder.name)
    instances = encode_texts(
        encoder, dataset.train.instances.texts, role=Role.QUERY, precision="auto"
    )
    labels = encode_texts(encoder, dataset.labels.texts, role=Role.LABEL, precision="auto")
    encoded, computed = perf_counter(), process_time()
    slices = splits_of(dataset, facts, record, seed=seed)
    depth = max(*DEPTHS, UNCHOSEN.depth)
    splits = [retrieve_held_out(dataset, one, instances, labels, depth=depth) for one in slices]
    choose = partial(choose_on, start=UNCHOSEN, metrics=METRICS, words=WORDS, hubs=HUBS)
    measured = [measure(split, choose(split)) for split in splits]
    choosing, computing = perf_counter() - encoded, process_time() - computed
    cost = Cost(
        encode=encoded - start,
        choose=choosing / facts.splits,
        slowness=max(1.0, choosing / max(computing, 1e-3)),
    )
    weights = weight_trials(splits, measured)
    relevance = best_relevance(weights)
    if relevance is not None:
        measured = list(map(partial(chosen_with, relevance), splits, measured))
    choices = measured[0].choices
    write_model(encoder, folder / BEST)
    write_choices(folder / BEST, choices)
    trained_texts.write(TrainedTexts(before=record.all), folder / BEST)
    (folder / LINES).touch()
    seconds = perf_counter() - start
    settings = {
        "encoder": {"name": encoder.name},
        "validation": {"rows": facts.held_out, "drawn": "texts"},
        "seed": seed,
    }
    progress = asdict(Progress(seconds=seconds, best_step=0))
    used = machine(libraries=versions("torch", "transformers"), device=gpu_name())
    write_facts(folder, name, settings, dataset, progress, choices, used)
    trial = joined(
        measured,
        name=name,
        summary="the encoder as it is, with your data as its memory",
        folder=folder,
        seconds=seconds,
    )
    encode = partial(encode_texts, encoder, role=Role.QUERY, precision="auto")
    keep_untrained(
        dataset,
        folder,
        encoder=encoder.name,
        instances=instances,
        labels=labels,
        queries=encoded_rows(dataset, seed=seed, encode=encode),
        choices=choices,
    )
    return trial, cost, weights


def splits_of(
    dataset: Dataset, facts: DataFacts, record: TrainedTexts, *, seed: int
) -> list[Slices]:
    """Return the rows that each split holds out; the candidates' recipes hold out the same rows.

    `record` lists the texts that the first encoder has trained on; no split holds them out.
    """
    train = dataset.train
    pairs = TrainingPairs(labels_of=train.labels_of, filtered=train.filtered).trainable()
    unseen = record.unseen(train.instances.texts)
    return [
        hold_out(
            pairs,
            total=len(train),
            count=facts.held_out,
            seed=seed + split,
            texts=train.instances.texts,
            unseen=unseen,
        )
        for split in range(facts.splits)
    ]


def trained(
    candidate: Candidate,
    dataset: Dataset,
    folder: Path,
    *,
    splits: Sequence[int],
    seconds: float,
    available: float,
    cost: Cost,
    relevance: Relevance | None,
    console: Console,
) -> tuple[Trial, Cost]:
    """Train a candidate on each split for at most `seconds`, and measure its checkpoint.

    `splits` are their seeds; the first split's checkpoint is kept. Training is shortened if steps
    and overhead (estimated by `cost`) would exceed the `available` time for all splits. `relevance`
    is the chosen relevance scale of the data set. Also returns the measured cost.
    """
    start, measured = perf_counter(), []
    end = start + available
    for number, seed in enumerate(splits):
        began = perf_counter()
        target = folder if not number else folder.with_name(f"{folder.name}-{number}")
        candidate_of_split = (*candidate.settings, f"seed={seed}")
        recipe = recipes.load(candidate.recipe, candidate_of_split)
        recipe = replace(recipe, optimizer=replace(recipe.optimizer, minutes=seconds / 60))
        trainer = open_run(
            recipe, dataset, target, source=candidate.recipe, resume=False, console=console
        )
        opened = perf_counter()
        closing = cost.closing(candidate.encodings, candidate.choices)
        of_split = (end - began) / (len(splits) - number)
        spare = min(SPARE * closing, LARGEST_SPARE * of_split)
        of_steps = min(seconds, began + of_split - spare - closing - opened)
        of_steps = max(FEWEST_SECONDS, of_steps)
        trainer.length = replace(trainer.length, seconds=of_steps)
        measured.append(_trained_once(candidate.recipe, trainer, dataset, relevance, console))
        shutil.rmtree(target / LAST, ignore_errors=True)  # fit does not resume a candidate
        if number:
            shutil.rmtree(target)
        # A run that finishes all epochs takes less time, so it says nothing about the cost.
        closed = perf_counter() - opened - min(of_steps, trainer.progress.seconds)
        extra = max(0.0, closed - (closing - cost.extra))
        opening = min(cost.opening or math.inf, opened - began)
        cost = replace(cost, opening=opening, extra=extra)
    progress = read_run(folder)["progress"]
    trial = joined(
        measured,
        name=candidate.name,
        summary=candidate.summary,
        folder=folder,
        seconds=perf_counter() - start,
        step=progress["best_step"],
        mixing=progress["best_mixing"],
    )
    return trial, cost


def _trained_once(
    source: str,
    trainer: Trainer,
    dataset: Dataset,
    relevance: Relevance | None,
    console: Console,
) -> Measured:
    progress = trainer.train()
    choices, finished = choose_for_inference(trainer, console=console, relevance=relevance)
    if finished is None:
        raise InvalidConfig(f"{source}: validation.rows must not be 0 in fit")
    used, settings = hardware(trainer.model.accelerator), asdict(trainer.recipe)
    write_facts(trainer.folder, source, settings, dataset, asdict(progress), choices, used)
    depth = max(*DEPTHS, choices.depth)
    held_out = finished.validation.retrieve(finished.instances, finished.keys, depth=depth)
    return measure(held_out, choices)


def keep(trial: Trial, run: Path, *, first: Trial, facts: Mapping[str, Any]) -> None:
    """Move a trial's run to `run`, and add `facts` to its run.json.

    The answers of the first encoder's memory are copied as well, if there are any.
    """
    answers = first.folder / UNTRAINED_ANSWERS
    if trial is not first and answers.is_file():
        answers.rename(run / UNTRAINED_ANSWERS)
    for path in sorted(trial.folder.iterdir()):
        path.rename(run / path.name)
    trial.folder.rmdir()
    write_run(run, {**read_run(run), **facts})

"""The runs of `fit`: the encoder as it is, and each candidate within its time.

Shapes: N training rows, L labels, d dimensions.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

from rich.console import Console

from service.core.errors import InvalidConfig
from service.core.types import Floats, Role
from training.checkpoints.choices import UNCHOSEN, Choices, as_document, write_choices
from training.checkpoints.model_folder import write_model
from training.checkpoints.run_json import BEST, DATA_DIGEST, read_run, write_run
from training.checkpoints.saved_state import LAST
from training.datasets.dataset import Dataset
from training.datasets.pair_weights import Relevance
from training.datasets.training_pairs import TrainingPairs
from training.evaluation.answers import FILE as UNTRAINED_ANSWERS
from training.evaluation.answers import digest_of
from training.evaluation.encode_texts import encode_texts
from training.experiments.untrained import encoded_rows, keep_untrained
from training.fitting.candidate import Candidate
from training.fitting.facts import DataFacts
from training.fitting.time_left import Cost
from training.fitting.trial import METRICS, UNTRAINED, Measured, Trial, joined, measure
from training.fitting.weights import best_relevance, chosen_with, weight_trials
from training.hardware import hardware, machine, versions
from training.loop.finish import choose_for_inference
from training.loop.journal import LINES
from training.loop.setup import open_run
from training.loop.state import Progress
from training.models.torch_encoder import TorchEncoder
from training.recipes import recipe as recipes
from training.recipes.recipe import Recipe
from training.selection.memory_choices import DEPTHS, choose_on
from training.selection.validation import HeldOutRetrieval, hold_out, retrieve_held_out


def untrained(
    encoder: TorchEncoder, dataset: Dataset, facts: DataFacts, folder: Path, *, seed: int
) -> tuple[Trial, Cost, list[Trial]]:
    """Measure the encoder as it is on each split, and write it as a run.

    The last trials are those of `weight_trials`.
    """
    start = perf_counter()
    instances = encode_texts(
        encoder, dataset.train.instances.texts, role=Role.QUERY, precision="auto"
    )
    labels = encode_texts(encoder, dataset.labels.texts, role=Role.LABEL, precision="auto")
    encoded = perf_counter()
    splits = list(_held_out(dataset, instances, labels, facts, seed=seed))
    measured = [measure(split, choose_on(split, UNCHOSEN, metrics=METRICS)) for split in splits]
    choosing = perf_counter() - encoded
    cost = Cost(encode=encoded - start, choose=choosing / facts.splits)
    weights = weight_trials(splits, measured)
    relevance = best_relevance(weights)
    if relevance is not None:
        measured = list(map(partial(chosen_with, relevance), splits, measured))
    choices = measured[0].choices
    write_model(encoder, folder / BEST)
    write_choices(folder / BEST, choices)
    (folder / LINES).touch()
    seconds = perf_counter() - start
    settings = {
        "encoder": {"name": encoder.name},
        "validation": {"rows": facts.held_out, "drawn": "texts"},
        "seed": seed,
    }
    progress = asdict(Progress(seconds=seconds, best_step=0))
    used = machine(libraries=versions("torch", "transformers"))
    _write_facts(folder, UNTRAINED, settings, dataset, progress, choices, used)
    trial = joined(
        measured,
        name=UNTRAINED,
        summary="the encoder as it is, with your data as its memory",
        folder=folder,
        seconds=seconds,
    )
    _keep_answers(encoder, dataset, folder, instances, labels, choices, seed=seed)
    return trial, cost, weights


def _held_out(
    dataset: Dataset, instances: Floats, labels: Floats, facts: DataFacts, *, seed: int
) -> Iterator[HeldOutRetrieval]:
    """What the held-out rows of each split retrieve, from vectors [N, d] and [L, d]."""
    train = dataset.train
    pairs = TrainingPairs(labels_of=train.labels_of, filtered=train.filtered).trainable()
    for split in range(facts.splits):
        slices = hold_out(
            pairs,
            total=len(train),
            count=facts.held_out,
            seed=seed + split,
            texts=train.instances.texts,
        )
        depth = max(*DEPTHS, UNCHOSEN.depth)
        yield retrieve_held_out(dataset, slices, instances, labels, depth=depth)


def _keep_answers(
    encoder: TorchEncoder,
    dataset: Dataset,
    folder: Path,
    instances: Floats,
    labels: Floats,
    choices: Choices,
    *,
    seed: int,
) -> None:
    """Keep what the untrained memory of [N, d] and [L, d] answers to test rows, for the report."""
    encode = partial(encode_texts, encoder, role=Role.QUERY, precision="auto")
    encoded = encoded_rows(dataset, seed=seed, encode=encode)
    if encoded is None:
        return
    rows, queries = encoded
    keep_untrained(
        dataset,
        folder,
        encoder=encoder.name,
        instances=instances,
        labels=labels,
        queries=queries,
        rows=rows,
        choices=choices,
    )


def trained(
    candidate: Candidate,
    dataset: Dataset,
    folder: Path,
    *,
    splits: Sequence[int],
    seconds: float,
    relevance: Relevance | None,
    console: Console,
) -> Trial:
    """Train a candidate on each split for at most so many seconds, and measure what it kept.

    `splits` are their seeds; the checkpoint of the first one is kept. `relevance` is the scale that
    was chosen, on which the data set has its pairs.
    """
    start, measured = perf_counter(), []
    for number, seed in enumerate(splits):
        target = folder if not number else folder.with_name(f"{folder.name}-{number}")
        candidate_of_split = (*candidate.settings, f"seed={seed}")
        recipe = recipes.load(candidate.recipe, candidate_of_split)
        recipe = replace(recipe, optimizer=replace(recipe.optimizer, minutes=seconds / 60))
        measured.append(
            _trained_once(candidate.recipe, recipe, dataset, target, relevance, console)
        )
        shutil.rmtree(target / LAST, ignore_errors=True)  # fit does not resume a candidate
        if number:
            shutil.rmtree(target)
    progress = read_run(folder)["progress"]
    return joined(
        measured,
        name=candidate.name,
        summary=candidate.summary,
        folder=folder,
        seconds=perf_counter() - start,
        step=progress["best_step"],
        mixing=progress["best_mixing"],
    )


def _trained_once(
    source: str,
    recipe: Recipe,
    dataset: Dataset,
    folder: Path,
    relevance: Relevance | None,
    console: Console,
) -> Measured:
    trainer = open_run(recipe, dataset, folder, source=source, resume=False, console=console)
    progress = trainer.train()
    choices, finished = choose_for_inference(trainer, console=console, relevance=relevance)
    if finished is None:
        raise InvalidConfig(f"{source}: validation.rows must not be 0 in fit")
    used = hardware(trainer.model.accelerator)
    _write_facts(folder, source, asdict(recipe), dataset, asdict(progress), choices, used)
    depth = max(*DEPTHS, choices.depth)
    held_out = finished.validation.retrieve(finished.instances, finished.keys, depth=depth)
    return measure(held_out, choices)


def _write_facts(
    folder: Path,
    recipe: str,
    settings: Mapping[str, Any],
    dataset: Dataset,
    progress: Mapping[str, Any],
    choices: Choices,
    used: Mapping[str, Any],
) -> None:
    """The run's facts, as `train` writes them."""
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


def keep(trial: Trial, run: Path, *, untrained: Trial, facts: Mapping[str, Any]) -> None:
    """Make a trial's run that of `run`, with further facts in its run.json.

    The answers of the untrained encoder's memory come along, if there are any.
    """
    answers = untrained.folder / UNTRAINED_ANSWERS
    if trial is not untrained and answers.is_file():
        answers.rename(run / UNTRAINED_ANSWERS)
    for path in sorted(trial.folder.iterdir()):
        path.rename(run / path.name)
    trial.folder.rmdir()
    write_run(run, {**read_run(run), **facts})

"""One encoder of several runs: the mean of their weights (model soups, Wortsman et al., 2022).

Runs that began with the same weights, and differ in learning rate, steps or loss, often lie in one
valley: the mean of their weights is then better than each of them, and costs a query nothing. All
weights are averaged: the transformer's, those of n-grams and heads, and the system's own. What is
chosen at the end of a run is chosen anew: the shares of heads, temperature, lambda, b, label keys.

Shapes: r runs, N training rows, L labels, d dimensions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from rich.console import Console
from safetensors.torch import load_file
from torch import Tensor

from service.core.config import parse
from service.core.errors import InvalidInput
from training.checkpoints.choices import as_document, read_choices
from training.checkpoints.model_folder import HEAD_WEIGHTS
from training.checkpoints.run_json import RUN, write_run
from training.combining.runs import FinishedRun
from training.datasets.dataset import Dataset
from training.datasets.pair_weights import with_relevance
from training.loop.finish import choose_for_inference
from training.loop.setup import open_run
from training.loop.trainer import Trainer
from training.models.settings import LoraSettings
from training.models.torch_encoder import load_encoder
from training.progress import say
from training.recipes.recipe import Recipe
from training.selection.validation import Validation, criterion
from training.systems.mogic.settings import GuidanceSettings
from training.systems.soft_labels.settings import SoftLabelSettings

Way = Literal["greedy", "uniform"]
Weights = dict[str, Tensor]
_HEAD = "head/"  # before the names of the system's own weights


@dataclass(frozen=True, kw_only=True)
class Average:
    """The runs whose weights were averaged, and the held-out scores that decided.

    `score` is the average's, `alone` that of each run by its name.
    """

    way: Way
    kept: tuple[str, ...]
    score: float
    alone: dict[str, float]


def average_runs(
    runs: Sequence[FinishedRun], dataset: Dataset, out: Path, *, way: Way, console: Console
) -> Average:
    """Write the average as a finished run into the folder `out`.

    `greedy` begins with the run that is best on the held-out rows and adds each other one, by
    descending score, if the average does not become worse; `uniform` averages all. Raises
    `InvalidInput` for runs whose weights have other names or shapes, `InvalidConfig` for settings
    that this version does not know.
    """
    weights = [_weights(run) for run in runs]
    for run, other in zip(runs[1:], weights[1:], strict=True):
        _require_same_shapes(runs[0], weights[0], run, other)
    choices = read_choices(runs[0].best)
    relevance = None if choices is None else choices.relevance
    dataset = with_relevance(dataset, relevance)
    recipe, source = _recipe(runs), str(runs[0].folder / RUN)
    trainer = open_run(recipe, dataset, out, source=source, resume=False, console=console)
    assert trainer.validation is not None  # `open_runs` refuses runs that hold nothing out
    ranked = [_score(trainer, trainer.validation, one) for one in weights]
    order = sorted(range(len(runs)), key=lambda place: -ranked[place])
    add = _added if way == "greedy" else _all
    kept, score = add(trainer, trainer.validation, weights, order, ranked)
    _write_best(trainer, averaged([weights[place] for place in kept]))
    chosen, _ = choose_for_inference(trainer, console=console, relevance=relevance)
    average = Average(
        way=way,
        kept=tuple(runs[place].name for place in kept),
        score=score,
        alone={run.name: ranked[place] for place, run in enumerate(runs)},
    )
    facts = {**runs[0].facts, "choices": as_document(chosen), "average": asdict(average)}
    facts |= {"recipe": f"average of {', '.join(average.kept)}", "settings": asdict(recipe)}
    facts["progress"] = {
        **runs[0].facts["progress"],
        "seconds": sum(run.seconds for run in runs),
        "best_score": score,
        "best_mixing": 1.0,
    }
    write_run(out, facts)
    return average


def averaged(weights: Sequence[Mapping[str, Tensor]]) -> Weights:
    """theta = (1 / r) sum of theta_m, tensor by tensor; what is no float is the first one's."""
    first = weights[0]
    return {
        name: torch.stack([one[name] for one in weights]).mean(dim=0)
        if value.is_floating_point()
        else value
        for name, value in first.items()
    }


def _added(
    trainer: Trainer,
    validation: Validation,
    weights: Sequence[Weights],
    order: Sequence[int],
    alone: Sequence[float],
) -> tuple[list[int], float]:
    """The greedy soup: the places of the runs that it keeps, and its held-out score."""
    kept, best = [order[0]], alone[order[0]]
    for place in order[1:]:
        score = _score(trainer, validation, averaged([weights[one] for one in (*kept, place)]))
        say(f"the average of {len(kept) + 1} runs: {score:.2f} on held-out rows, before {best:.2f}")
        if score >= best:
            kept, best = [*kept, place], score
    return kept, best


def _all(
    trainer: Trainer,
    validation: Validation,
    weights: Sequence[Weights],
    order: Sequence[int],
    alone: Sequence[float],
) -> tuple[list[int], float]:
    """The uniform soup: all runs, and its held-out score."""
    return sorted(order), _score(trainer, validation, averaged(weights))


def _score(trainer: Trainer, validation: Validation, weights: Weights) -> float:
    """The mean of the recipe's metrics on the held-out rows at the best lambda, in percent."""
    _load(trainer, weights)
    scores = validation.scores(*trainer.model.memory_keys(trainer.journal.encoded))
    return criterion(scores, trainer.recipe.validation.metrics)


def _load(trainer: Trainer, weights: Weights) -> None:
    """Give the trainer's model these weights."""
    model = trainer.model
    of_head = {name.removeprefix(_HEAD) for name in weights if name.startswith(_HEAD)}
    encoder = {name: value for name, value in weights.items() if not name.startswith(_HEAD)}
    model.encoder.model.load_state_dict(encoder)
    if model.system.head is not None:
        model.system.head.load_state_dict({name: weights[f"{_HEAD}{name}"] for name in of_head})


def _write_best(trainer: Trainer, weights: Weights) -> None:
    _load(trainer, weights)
    model, keys = trainer.model, None
    head = model.head_weights()
    if head is not None:
        keys = model.memory_keys(trainer.journal.encoded)[1]
    model.write_checkpoint(trainer.best, mixing=1.0, head_weights=head, label_keys=keys)


def _weights(run: FinishedRun) -> Weights:
    """All weights of a run's checkpoint by name; those of its system begin with `head/`."""
    weights: Weights = dict(load_encoder(str(run.best)).model.state_dict())
    head = run.best / HEAD_WEIGHTS
    if head.is_file():
        weights |= {f"{_HEAD}{name}": value for name, value in load_file(head).items()}
    return weights


def _require_same_shapes(
    first: FinishedRun, weights: Weights, other: FinishedRun, others: Weights
) -> None:
    """Raise `InvalidInput` for two runs whose weights cannot be averaged."""
    for name in sorted({*weights, *others}):
        shapes = [
            str(list(one[name].shape)) if name in one else "none" for one in (weights, others)
        ]
        if shapes[0] != shapes[1]:
            raise InvalidInput(
                f"{first.folder} and {other.folder} cannot be averaged: the shapes of {name} are"
                f" {shapes[0]} and {shapes[1]}; `mix` mixes the scores of any runs"
            )


def _recipe(runs: Sequence[FinishedRun]) -> Recipe:
    """The first run's recipe, over its checkpoint, without what only a training needs.

    A transformer that was frozen in all runs, and is the same one, need not be encoded with anew.
    """
    recipes = [
        parse(Recipe, _settings(run), source=f"{run.folder / RUN}: settings") for run in runs
    ]
    first = recipes[0]
    one_frozen = all(one.encoder.frozen for one in recipes) and (
        len({one.encoder.name for one in recipes}) == 1
    )
    return replace(
        first,
        encoder=replace(first.encoder, name=str(runs[0].best), stage_one=None, frozen=one_frozen),
        ngrams=replace(first.ngrams, frozen=first.ngrams.frozen and one_frozen),
        lora=LoraSettings(),
        guidance=GuidanceSettings(),
        soft_labels=SoftLabelSettings(),
    )


def _settings(run: FinishedRun) -> dict[str, Any]:
    settings: dict[str, Any] = run.facts.get("settings", {})
    return settings

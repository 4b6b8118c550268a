"""Temperature, lambda and b of a trained encoder, chosen on rows that it never saw.

The paper keeps one temperature for training and memory. The best of the memory is another one on
both of our data sets, so it is chosen too; nothing is trained again for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from rich.console import Console
from safetensors.torch import load_file

from training.choices import UNCHOSEN, Choices, write_choices
from training.encoder import load_encoder
from training.model_folder import OWN
from training.run import memory_tau
from training.run_facts import BEST
from training.trainer import Trainer
from training.validation import Asked, criterion

TAUS = (0.03, 0.04, 0.05, 0.06, 0.08, 0.1, 0.12, 0.15, 0.2)
MEMORIZATIONS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
DEPTHS = (50, 100, 200, 400)
COARSE = (0.3, 0.5, 0.7)  # the lambdas that a temperature is tried with

Told = Callable[[Choices, dict[str, float]], None]


def choose_on(
    asked: Asked,
    start: Choices,
    *,
    metrics: Sequence[str],
    told: Told = lambda choices, found: None,
) -> Choices:
    """First the temperature at the start's b, then b and lambda together.

    What comes first wins where two are equal: `DEPTHS` rise, and a smaller one is quicker. `told`
    hears of everything that was tried.
    """

    def score(tried: Choices) -> float:
        found = asked.metrics(tau=tried.tau, memorization=tried.memorization, depth=tried.depth)
        told(tried, found)
        return criterion({tried.memorization: found}, metrics)

    taus = [
        replace(start, tau=tau, memorization=memorization)
        for tau in sorted({start.tau, *TAUS})
        for memorization in COARSE
    ]
    warmed = max(taus, key=score)
    return max(
        (
            replace(warmed, depth=depth, memorization=memorization)
            for depth in DEPTHS
            for memorization in MEMORIZATIONS
        ),
        key=score,
    )


def choose(trainer: Trainer, *, console: Console) -> Choices:
    """Choose for a run's best checkpoint, and write it beside the weights."""
    recipe = trainer.recipe
    choices = Choices(
        system=str(recipe.system["name"]),
        tau=memory_tau(recipe),
        memorization=UNCHOSEN.memorization,
        depth=recipe.validation.depth,
    )
    if trainer.validation is not None:
        load_best(trainer)
        instances, labels = trainer.keys()
        with console.status("choosing temperature, lambda and b"):
            choices = choose_on(
                trainer.validation.ask(
                    instances, labels, depth=max(*DEPTHS, recipe.validation.depth)
                ),
                choices,
                metrics=recipe.validation.metrics,
                told=trainer.journal.tried,
            )
    if trainer.accelerator.is_main_process:
        write_choices(trainer.folder / BEST, choices)
    return choices


def load_best(trainer: Trainer) -> None:
    """Put the best checkpoint's weights into the trained encoder and the system."""
    best = load_encoder(str(trainer.folder / BEST))
    trainer.encoder.model.load_state_dict(best.model.state_dict())
    if trainer.system.own is not None:
        trainer.system.own.load_state_dict(load_file(trainer.folder / BEST / OWN))

"""lambda and b of a trained encoder, chosen on the rows that it never saw."""

from __future__ import annotations

from dataclasses import replace

from rich.console import Console

from training.choices import Choices, write_choices
from training.encoder import load_encoder
from training.run import memory_tau
from training.trainer import BEST, Trainer
from training.validation import criterion

MEMORIZATIONS = (0.0, 0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)  # the paper's Table 8
DEPTHS = (50, 100, 200, 400)
DEFAULT_MEMORIZATION = 0.5


def choose(trainer: Trainer, *, console: Console) -> Choices:
    """Sweep both on the held-out rows with the best checkpoint, and write them beside it.

    A smaller depth is preferred where it costs nothing: it is quicker.
    """
    recipe = trainer.recipe
    choices = Choices(
        system=str(recipe.system["name"]),
        tau=memory_tau(recipe),
        memorization=DEFAULT_MEMORIZATION,
        depth=recipe.validation.depth,
    )
    if trainer.validation is not None:
        load_best(trainer)
        instances, labels = trainer.refresh.vectors()
        metrics, best = recipe.validation.metrics, -1.0
        for depth in DEPTHS:
            settings = replace(recipe.validation, depth=depth, memorization=MEMORIZATIONS)
            scores = replace(trainer.validation, settings=settings).scores(instances, labels)
            trainer.journal.swept(trainer.progress.best_step, depth, scores)
            for memorization, found in scores.items():
                score = criterion({memorization: found}, metrics)
                if score > best:
                    best = score
                    choices = replace(choices, memorization=memorization, depth=depth)
    if trainer.accelerator.is_main_process:
        write_choices(trainer.folder / BEST, choices)
    return choices


def load_best(trainer: Trainer) -> None:
    """Put the best checkpoint's weights into the trained encoder."""
    best = load_encoder(str(trainer.folder / BEST))
    trainer.encoder.model.load_state_dict(best.model.state_dict())

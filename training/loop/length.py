"""How long a run is: by steps or epochs, and at most so many minutes."""

from __future__ import annotations

import math
from dataclasses import dataclass

from training.loop.state import Progress
from training.recipes.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class Length:
    """A run ends after `steps`, or after `seconds` if these are over first.

    The learning rate follows `place`, so that it has fallen to zero at either end.
    """

    steps: int
    seconds: float = math.inf

    def place(self, progress: Progress) -> int:
        """How far the run is, in steps from 0 to `steps`."""
        by_time = int(self.steps * min(1.0, progress.seconds / self.seconds))
        return min(self.steps, max(progress.step, by_time))

    def is_over(self, progress: Progress) -> bool:
        """Whether no step is left."""
        return self.place(progress) >= self.steps


def length_of(recipe: Recipe, *, rows: int) -> Length:
    """The length of a run of `recipe` on so many training rows; an epoch draws each row once."""
    settings = recipe.optimizer
    steps = settings.steps
    if steps is None:
        steps = recipe.steps_of(settings.epochs or 0.0, rows=rows)
    minutes = settings.minutes
    return Length(steps=steps, seconds=math.inf if minutes is None else 60.0 * minutes)

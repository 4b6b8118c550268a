"""The held-out slice of the training rows: what early stopping, lambda and b are chosen on.

Shapes: N training rows, L labels, d dimensions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from service.core.errors import InvalidConfig
from service.core.types import Floats, Rows
from training.datasets.dataset import Dataset
from training.metrics import evaluate
from training.prediction import Keys, predict, retrieve
from training.propensity import inverse_propensity
from training.recipe import ValidationSettings

RANKED = 100  # the deepest metric is R@100


@dataclass(frozen=True, kw_only=True, eq=False)
class Slices:
    """Rows of the training split: those that train and stand in the memory, those held out."""

    kept: Rows
    held_out: Rows


def hold_out(candidates: Rows, *, total: int, count: int, seed: int) -> Slices:
    """Draw `count` rows of `candidates` from `total` training rows.

    Raises `InvalidConfig` where fewer than half would be left to train on.
    """
    if 2 * count > len(candidates):
        raise InvalidConfig(
            f"validation.rows: {count} of {len(candidates)} labelled rows are too many;"
            " at most half can be held out"
        )
    drawn = np.random.default_rng([seed, 4]).permutation(candidates)[:count]
    held_out = np.sort(drawn)
    return Slices(kept=np.setdiff1d(np.arange(total), held_out), held_out=held_out)


@dataclass(frozen=True, kw_only=True, eq=False)
class Validation:
    """Scores an encoder on the held-out rows, the kept rows and all labels as its memory."""

    dataset: Dataset
    slices: Slices
    settings: ValidationSettings
    tau: float

    def scores(self, instances: Floats, labels: Floats) -> dict[float, dict[str, float]]:
        """Metrics in percent by lambda, from unit vectors of all training rows and labels."""
        train = self.dataset.train
        kept, held_out = self.slices.kept, self.slices.held_out
        keys = Keys(
            keys=np.concatenate([instances[kept], labels]).astype(np.float16),
            labels_of=train.labels_of[kept],
            uids=self.dataset.labels.uids,
        )
        filtered = train.filtered[held_out]
        found = retrieve(keys, instances[held_out], depth=self.settings.depth)
        weights = inverse_propensity(
            train.labels_of[kept], a=self.dataset.propensity.a, b=self.dataset.propensity.b
        )
        top_k = RANKED + int(np.diff(filtered.indptr).max(initial=0))
        return {
            memorization: evaluate(
                predict(
                    keys,
                    found.voting(memorization, self.settings.depth),
                    tau=self.tau,
                    memorization=memorization,
                    top_k=top_k,
                ),
                train.labels_of[held_out],
                inverse_propensities=weights,
                filtered=filtered,
            )
            for memorization in self.settings.memorization
        }


def criterion(scores: Mapping[float, Mapping[str, float]], metrics: Sequence[str]) -> float:
    """The mean of `metrics` at the best lambda: what a better checkpoint has more of.

    Raises `InvalidConfig` for a metric that is not measured.
    """
    for name in metrics:
        if any(name not in found for found in scores.values()):
            known = ", ".join(next(iter(scores.values())))
            raise InvalidConfig(f"validation.metrics: {name!r} is not one of {known}")
    return max(float(np.mean([found[name] for name in metrics])) for found in scores.values())

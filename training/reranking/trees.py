"""Gradient-boosted trees that order the candidates of a query (LambdaMART; Burges, 2010).

Shapes: m candidates, F features.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
from numpy.typing import NDArray

from service.core.types import Bools, Doubles

Features = NDArray[np.float32]  # [m, F]

PARAMETERS: dict[str, Any] = {
    "objective": "lambdarank",
    "lambdarank_truncation_level": 20,
    "learning_rate": 0.08,
    "num_leaves": 7,
    "min_data_in_leaf": 100,
    "feature_fraction": 0.5,
    "bagging_fraction": 0.7,
    "bagging_freq": 1,
    "deterministic": True,
    "force_row_wise": True,
    "verbose": -1,
}


@dataclass(frozen=True, kw_only=True, eq=False)
class LearnedTrees:
    """A trained ensemble."""

    booster: lightgbm.Booster

    @property
    def count(self) -> int:
        """How many trees there are: fewer than were asked for where nothing is left to split."""
        return int(self.booster.num_trees())

    @property
    def features(self) -> int:
        """F."""
        return int(self.booster.num_feature())

    def scores(self, features: Features, *, trees: int) -> Doubles:
        """The sum of the first `trees` trees for each candidate, [m]."""
        scores: Doubles = np.asarray(
            self.booster.predict(features, num_iteration=trees), np.float64
        )
        return scores

    def gains(self) -> dict[str, float]:
        """Each feature's share of the loss that all splits gain, the greatest first."""
        gains = self.booster.feature_importance("gain")
        shares = gains / max(gains.sum(), 1e-12)
        named = zip(self.booster.feature_name(), shares.tolist(), strict=True)
        return dict(sorted(named, key=lambda pair: -pair[1]))

    def write(self, path: Path) -> None:
        """Write LightGBM's own text format."""
        self.booster.save_model(path)


def learn_trees(
    features: Features,
    positive: Bools,
    group_sizes: Sequence[int],
    *,
    names: Sequence[str],
    trees: int,
    seed: int,
) -> LearnedTrees:
    """Learn to rank positive candidates [m] first; the candidates of a query lie together."""
    data = lightgbm.Dataset(
        features,
        positive.astype(np.int8),
        group=list(group_sizes),
        feature_name=[_plain(name) for name in names],
    )
    parameters = PARAMETERS | {"seed": seed}
    return LearnedTrees(booster=lightgbm.train(parameters, data, num_boost_round=trees))


def _plain(name: str) -> str:
    """LightGBM allows neither commas nor spaces in the name of a feature."""
    return "_".join(name.replace(",", " ").replace("'", " ").split())

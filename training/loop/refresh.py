"""Every so many steps all texts are encoded anew: for hard negatives, clusters and validation.

Shapes: N training rows, L labels, d dimensions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from service.core.types import Floats, Rows
from training.batches.clusters import balanced_clusters
from training.batches.hard_negatives import mine
from training.datasets.training_pairs import TrainingPairs
from training.loop.embedder import Embedder
from training.loop.state import Found
from training.recipes.recipe import Recipe


@dataclass(frozen=True, kw_only=True, eq=False)
class Refresh:
    """Encodes everything, and finds what batches are made from.

    The embedder's table holds all training instances first, then all labels.
    """

    recipe: Recipe
    pairs: TrainingPairs
    rows: Rows  # that train
    embedder: Embedder
    progress: Callable[[int, int], None]

    def due(self, step: int) -> bool:
        """Whether something must be found before this step."""
        refresh = self.recipe.refresh
        if not (self.needs_mined or self.needs_clusters):
            return False
        if self.needs_clusters and step == 0:
            return True
        return bool(
            refresh.every and step >= refresh.first and (step - refresh.first) % refresh.every == 0
        )

    @property
    def needs_mined(self) -> bool:
        """Whether the batches take mined negatives."""
        return self.recipe.batch.hard_negatives > 0

    @property
    def needs_clusters(self) -> bool:
        """Whether the batches follow clusters."""
        return self.recipe.batch.order == "clustered"

    def vectors(self) -> tuple[Floats, Floats]:
        """All instances [N, d] and all labels [L, d]."""
        count = len(self.embedder.table)
        found = self.embedder.vectors(
            np.arange(count), progress=lambda done: self.progress(done, count)
        )
        return found[: count - self.pairs.labels], found[count - self.pairs.labels :]

    def find(self, step: int, instances: Floats, labels: Floats) -> Found:
        """Mine and cluster with the present vectors; the same in every process."""
        refresh, mined, clusters = self.recipe.refresh, None, None
        if self.needs_mined and step >= refresh.first:
            rows = mine(
                instances=instances[self.rows],
                labels=labels,
                labels_of=self.pairs.labels_of[self.rows],
                filtered=self.pairs.filtered[self.rows],
                top=refresh.top,
                library=refresh.library,
            )
            mined = np.full((len(instances), refresh.top), -1, np.int32)
            mined[self.rows] = rows
        if self.needs_clusters:
            rng = np.random.default_rng([self.recipe.seed, step, 5])
            size = self.recipe.batch.cluster_size
            clusters = balanced_clusters(instances[self.rows], size=size, rng=rng)
        return Found(mined=mined, clusters=clusters)

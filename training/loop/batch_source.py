"""The batches of a run, and the hard negatives and clusters that they are drawn from.

At intervals set by the recipe's `[refresh]`, all texts are encoded again for new hard negatives and
clusters.

Shapes: N training rows, L labels, d dimensions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from service.core.types import Floats, Rows
from training.batches.batch import Batch, HardNegatives, draw_batch
from training.batches.clusters import balanced_clusters
from training.batches.hard_negatives import mine_hard_negatives
from training.batches.order import batch_rows, step_rng
from training.loop.training_data import TrainingData
from training.recipes.recipe import Recipe


@dataclass(kw_only=True, eq=False)
class Neighbourhoods:
    """Hard negatives and clusters as of the last refresh."""

    hard_negatives: HardNegatives | None = None
    clusters: list[Rows] | None = None


@dataclass(kw_only=True, eq=False)
class BatchSource:
    """Draws the batch of each step; a pure function of the seed, the step and `neighbourhoods`."""

    recipe: Recipe
    data: TrainingData
    neighbourhoods: Neighbourhoods

    def batch(self, number: int) -> Batch:
        """Return batch `number` of the run, counted from 0."""
        settings, seed = self.recipe.batch, self.recipe.seed
        rows = batch_rows(
            number,
            rows=self.data.rows,
            size=settings.instances,
            clusters=self.neighbourhoods.clusters,
            seed=seed,
        )
        return draw_batch(
            self.data.pairs,
            rows,
            settings=settings,
            hard_negatives=self.neighbourhoods.hard_negatives,
            rng=step_rng(seed, number),
        )

    def refresh_is_due(self, step: int) -> bool:
        """Whether hard negatives or clusters must be computed before this step."""
        refresh = self.recipe.refresh
        if not (self._needs_hard_negatives or self._needs_clusters):
            return False
        if self._needs_clusters and step == 0:
            return True
        if not refresh.recurs or step < refresh.first:
            return False
        epochs, distance = refresh.every_epochs, refresh.every
        if epochs is not None:
            distance = self.recipe.steps_of(epochs, rows=len(self.data.rows))
        return (step - refresh.first) % distance == 0

    def refresh(self, step: int, instances: Floats, labels: Floats) -> None:
        """Mine and cluster with current vectors [N, d] and [L, d]; all processes get the same."""
        hard_negatives = clusters = None
        if self._needs_hard_negatives and step >= self.recipe.refresh.first:
            hard_negatives = self._mine(instances, labels)
        if self._needs_clusters:
            clusters = balanced_clusters(
                instances[self.data.rows],
                size=self.recipe.batch.cluster_size,
                rng=np.random.default_rng([self.recipe.seed, step, 5]),
            )
        self.neighbourhoods = Neighbourhoods(hard_negatives=hard_negatives, clusters=clusters)

    def _mine(self, instances: Floats, labels: Floats) -> HardNegatives:
        """Return the hard negatives [N, top] of the rows that train; other rows have only -1."""
        rows, pairs, refresh = self.data.rows, self.data.pairs, self.recipe.refresh
        hard_negatives = np.full((len(instances), refresh.top), -1, np.int32)
        hard_negatives[rows] = mine_hard_negatives(
            instances=instances[rows],
            labels=labels,
            labels_of=pairs.labels_of[rows],
            filtered=pairs.filtered[rows],
            top=refresh.top,
            library=refresh.library,
        )
        return hard_negatives

    @property
    def _needs_hard_negatives(self) -> bool:
        return self.recipe.batch.hard_negatives > 0

    @property
    def _needs_clusters(self) -> bool:
        return self.recipe.batch.order == "clustered"

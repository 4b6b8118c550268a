"""Asks a bundle's memory as the service would, and says which keywords are right for a test row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from service.core.index.protocol import batches
from service.core.memory.view import View
from service.core.prediction.predictor import Predictor
from service.core.types import Keyword, PredictOptions
from training.datasets.dataset import Dataset

_ASKED_TOGETHER = 64


@dataclass(frozen=True, kw_only=True)
class Asking:
    """A view of a bundle's memory, and the data set whose test rows it is asked, drawn by `seed`.

    Test rows are named by their number.
    """

    predictor: Predictor
    view: View
    dataset: Dataset
    options: PredictOptions
    seed: int = 0

    def drawn(self, most: int) -> list[int]:
        """Return test rows in random order, at most so many."""
        rows = np.random.default_rng(self.seed).permutation(len(self.dataset.test))
        drawn: list[int] = rows[:most].tolist()
        return drawn

    def keywords(self, queries: Sequence[str], *, top_k: int) -> Iterator[tuple[Keyword, ...]]:
        """Yield the best keywords of each query."""
        options = replace(self.options, top_k=top_k)
        for batch in batches(len(queries), _ASKED_TOGETHER):
            answer = self.predictor.predict(self.view, queries[batch], options)
            yield from (prediction.keywords for prediction in answer.predictions)

    def filtered(self, row: int) -> set[str]:
        """Return the ids of the labels that do not count for a test row."""
        ids = self.dataset.labels.uids
        return {ids[column] for column in self.dataset.test.filtered[row].indices.tolist()}

    def relevant(self, row: int) -> set[str]:
        """Return the ids of a test row's labels."""
        ids = self.dataset.labels.uids
        return {ids[column] for column in self.dataset.test.labels_of[row].indices.tolist()}

"""Whether a bundle's confidences can be believed, on test rows and on nonsense.

Test rows are asked as the service would answer them. Labels that the data set filters for a row are
left out, as well as the label whose text is the query.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

import numpy as np

from service.core.index.protocol import batches
from service.core.memory.view import View
from service.core.prediction.predictor import Predictor
from service.core.prediction.reliability import Reliability, reliability
from service.core.text_identity import identity
from service.core.types import Bools, Doubles, Keyword, PredictOptions
from training.datasets.dataset import Dataset
from training.evaluation.noise import nonsense

ROWS = 5_000  # the most test rows that are asked
NONSENSE = 1_000  # queries that mean nothing
SHOWN = 10  # keywords of a query
_ASKED_TOGETHER = 64


@dataclass(frozen=True, kw_only=True)
class ConfidenceRow:
    """The reliability on test rows, and how much of the nonsense gets no keyword, in percent.

    The nonsense is asked with the reliability's threshold as `min_confidence`.
    """

    reliability: Reliability
    nonsense_empty: float


@dataclass(frozen=True, kw_only=True)
class ConfidenceMeasure:
    """Asks test rows of a data set, drawn by `seed`, from a view of a bundle's memory."""

    predictor: Predictor
    view: View
    dataset: Dataset
    options: PredictOptions
    seed: int = 0

    def row(self) -> ConfidenceRow:
        """Measure; the bundle must have confidences for the options' kind of score."""
        test, chance = self.dataset.test, Random(f"confidence {self.seed}")
        queries = test.instances.texts
        rows = np.random.default_rng(self.seed).permutation(len(queries))[:ROWS].tolist()
        confidences: list[Doubles] = []
        relevant: list[Bools] = []
        for batch in batches(len(rows), _ASKED_TOGETHER):
            for row, keywords in zip(
                rows[batch], self._asked([queries[row] for row in rows[batch]]), strict=True
            ):
                of_row, hits = self._judged(row, keywords)
                confidences.append(of_row)
                relevant.append(hits)
        found = reliability(confidences, relevant)
        meaningless = [nonsense(chance.choice(queries), chance) for _ in range(NONSENSE)]
        empty = 0
        for batch in batches(NONSENSE, _ASKED_TOGETHER):
            for keywords in self._asked(meaningless[batch]):
                sure = max((keyword.confidence or 0.0 for keyword in keywords), default=0.0)
                empty += sure < found.threshold
        return ConfidenceRow(reliability=found, nonsense_empty=100.0 * empty / NONSENSE)

    def _asked(self, queries: Sequence[str]) -> list[tuple[Keyword, ...]]:
        options = replace(self.options, top_k=SHOWN)
        answer = self.predictor.predict(self.view, queries, options)
        return [prediction.keywords for prediction in answer.predictions]

    def _judged(self, row: int, keywords: Sequence[Keyword]) -> tuple[Doubles, Bools]:
        """Return the confidences [k] of a row's keywords, and which are relevant [k]."""
        test, ids = self.dataset.test, self.dataset.labels.uids
        left_out = {ids[column] for column in test.filtered[row].indices.tolist()}
        labels = {ids[column] for column in test.labels_of[row].indices.tolist()}
        own = identity(test.instances.texts[row])
        judged = [
            keyword
            for keyword in keywords
            if keyword.id not in left_out and identity(keyword.text) != own
        ]
        return (
            np.array([keyword.confidence for keyword in judged], np.float64),
            np.array([keyword.id in labels for keyword in judged], bool),
        )

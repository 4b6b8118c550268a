"""Measures whether misspelled queries should be corrected by default, and records the figures.

A row of the bundle is hidden, and its text is asked: once as it is, and once with a typo. So words
that only this row has are unknown, as those of a new query.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from service.core.bundle.bundle import Bundle
from service.core.bundle.manifest import Manifest
from service.core.encoding.encoder import OnnxEncoder
from service.core.memory.knowledge_memory import KnowledgeMemory
from service.core.memory.view import View
from service.core.prediction.predictor import Predictor
from service.core.text_identity import identity
from service.core.types import Prediction, PredictOptions, Spelling
from training.evaluation.noise import with_typo
from training.progress import Report

HIDDEN_ROWS = 1_000  # one row is a tenth of a point of P@1
MOST_LOST = 0.1  # points of P@1 of queries without a typo
_SHOWN = 5  # keywords: the first may be the query itself, which is no answer to it
_REPORTED = 100  # rows


def choose_spelling(bundle: Bundle, *, report: Report) -> Manifest:
    """Return the bundle's manifest with its spelling, and the P@1 with and without it, in percent.

    Spelling is "auto" if it gains on queries with a typo and does not lose more than `MOST_LOST` on
    others, and if the bundle has no instances to measure with.
    """
    facts = bundle.manifest
    rows = np.random.default_rng(0).permutation(bundle.instances)[:HIDDEN_ROWS].tolist()
    if not rows:
        return replace(facts, spelling="auto")
    asking, chance = _Asking.of(bundle), random.Random(0)
    hits = np.zeros((len(rows), 4), bool)
    for place, row in enumerate(rows):
        if place % _REPORTED == 0:
            report("measure spelling", place, len(rows))
        query = bundle.instance_texts[row]
        texts = (query, with_typo(query, chance) or query)
        hits[place] = [right for text in texts for right in asking.are_right(row, text)]
    report("measure spelling", len(rows), len(rows))
    clean, corrected, typo, corrected_typo = (100 * hits.mean(axis=0)).tolist()
    gains = corrected_typo > typo and corrected >= clean - MOST_LOST
    chosen: Spelling = "auto" if gains else "off"
    metrics = {
        "spelling.P@1_off": clean,
        "spelling.P@1_auto": corrected,
        "spelling.typo_P@1_off": typo,
        "spelling.typo_P@1_auto": corrected_typo,
    }
    return replace(facts, spelling=chosen, metrics={**facts.metrics, **metrics})


@dataclass(frozen=True, kw_only=True)
class _Asking:
    view: View
    predictor: Predictor
    options: PredictOptions

    @classmethod
    def of(cls, bundle: Bundle) -> _Asking:
        facts = bundle.manifest
        return cls(
            view=KnowledgeMemory(bundle).view,
            predictor=Predictor(OnnxEncoder(bundle.folder, facts.encoder), tau=facts.predictor.tau),
            options=facts.options(PredictOptions(top_k=_SHOWN), rerank=False),
        )

    def are_right(self, row: int, query: str) -> tuple[bool, bool]:
        """Return whether the best label for `query` is one of the hidden row's, off and auto."""
        view = replace(self.view, base=self.view.base.with_tombstones([row]))
        auto = self._answer(view, query, spelling=True)
        right = self._is_right(row, auto)
        if auto.reading.text == query:  # so the answer without spelling is the same
            return right, right
        return self._is_right(row, self._answer(view, query, spelling=False)), right

    def _answer(self, view: View, query: str, *, spelling: bool) -> Prediction:
        options = replace(self.options, spelling=spelling)
        [answer] = self.predictor.predict(view, [query], options).predictions
        return answer

    def _is_right(self, row: int, answer: Prediction) -> bool:
        """Return whether the best label is one of the row's.

        A label whose text is the query, typed or read, does not count.
        """
        asked = {identity(self.view.bundle.instance_texts[row]), identity(answer.reading.text)}
        best = (word.id for word in answer.keywords if identity(word.text) not in asked)
        return self.view.labels.column(next(best, "")) in self._labels_of(row)

    def _labels_of(self, row: int) -> Sequence[int]:
        columns: Sequence[int] = self.view.votes(np.array([row]))[0].tolist()
        return columns

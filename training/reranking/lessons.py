"""What trees learn from: candidates of rows that a run did not train on.

The memory of a run has the rows that it trained on as instances. Such a row is its own nearest
instance, as no query of a service is, so trees must not learn from it.

Shapes: n held-out rows, m candidates, F features.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from service.core.types import Bools, Doubles, Rows
from training.combining.run_scoring import held_out_of
from training.combining.runs import FinishedRun
from training.experiments.sweeps import Scoring
from training.reranking.candidates import entries
from training.reranking.described import Described, describe, items_held_out, queries_held_out
from training.reranking.trees import Trees, learn_trees
from training.selection.validation import HeldOutRetrieval, ValidationSettings, criterion


@dataclass(frozen=True, kw_only=True, eq=False)
class Lesson:
    """The held-out rows of one run, described."""

    rows: Rows  # [n], their numbers in the training split
    described: Described
    held_out: HeldOutRetrieval

    def within(self, fold_of: Rows, fold: int) -> Bools:
        """Which candidates [m] are those of rows in a fold; fold_of has that of every row."""
        inside: Bools = fold_of[self.rows][self.described.candidates.queries] == fold
        return inside

    def score(self, scores: Doubles) -> float:
        """The mean of the metrics that choose, with the candidates ranked by scores [m]."""
        table = self.held_out.measure(self.described.ranked_by(scores))
        return criterion({0.0: table}, ValidationSettings().metrics)


def lesson_of(run: FinishedRun, scoring: Scoring, *, metadata: bool) -> Lesson:
    """The lesson of a run whose data are encoded already."""
    held_out = held_out_of(run, scoring)
    queries = queries_held_out(run, held_out, scoring)
    items = items_held_out(run) if metadata else None
    return Lesson(
        rows=run.slices.held_out,
        described=describe(queries, scoring, items),
        held_out=held_out,
    )


def learn(lessons: Sequence[Lesson], used: Sequence[Bools], *, trees: int, seed: int) -> Trees:
    """Learn from the candidates of each lesson that are `used` [m], but not from filtered ones.

    `trees` is their number; at least one is learned.
    """
    features, positive, counts = [], [], []
    for lesson, use in zip(lessons, used, strict=True):
        queries, candidates = lesson.described.queries, lesson.described.candidates
        places = np.nonzero(use & (entries(queries.filtered != 0, candidates) == 0))[0]
        candidates = candidates.only(places)
        features.append(lesson.described.features[places])
        positive.append(entries(queries.positives != 0, candidates) != 0)
        counts += candidates.counts.tolist()
    return learn_trees(
        np.concatenate(features),
        np.concatenate(positive),
        counts,
        names=lessons[0].described.names,
        trees=max(trees, 1),
        seed=seed,
    )

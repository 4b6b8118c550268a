"""What trees learn from: candidates of rows that a run did not train on.

The memory of a run has the rows that it trained on as instances. Such a row is its own nearest
instance, as no query of a service is, so trees must not learn from it.

Shapes: n held-out rows, m candidates, F features.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from service.core.prediction.reranking.text_overlap import WordRarity
from service.core.types import Bools, Doubles, Rows
from training.combining.run_scoring import held_out_of
from training.combining.runs import FinishedRun
from training.evaluation.prediction import Ranked
from training.experiments.sweeps import Scoring
from training.reranking.described import Described, describe
from training.reranking.item_features import items_held_out
from training.reranking.queries import queries_held_out
from training.reranking.trees import LearnedTrees, learn_trees
from training.selection.validation import HeldOutRetrieval, ValidationSettings, criterion


@dataclass(frozen=True, kw_only=True, eq=False)
class Lesson:
    """The held-out rows of one run, described."""

    rows: Rows  # [n], their numbers in the training split
    described: Described
    held_out: HeldOutRetrieval
    positive: Bools  # [m], whether a candidate is relevant
    counted: Bools  # [m], whether it counts: it is not filtered

    def within(self, fold_of: Rows, fold: int) -> Bools:
        """Which candidates [m] are those of rows in a fold; fold_of has that of every row."""
        inside: Bools = fold_of[self.rows][self.described.candidates.queries] == fold
        return inside

    def score(self, ranked: Ranked) -> float:
        """The mean of the metrics that choose."""
        table = self.held_out.measure(ranked)
        return criterion({0.0: table}, ValidationSettings().metrics)

    def score_by(self, sums: Doubles) -> float:
        """The same with the candidates ranked by the sums of trees [m]."""
        return self.score(self.described.ranked_by(sums))

    def rows_by(self, sums: Doubles | None) -> NDArray[np.float64]:
        """P@1, P@5 and R@100 of each row with a label that counts, [., 3]; None: by votes."""
        described = self.described
        ranked = described.ranked_by_votes() if sums is None else described.ranked_by(sums)
        return self.held_out.rows_of(ranked)


def lesson_of(
    run: FinishedRun, scoring: Scoring, rarity: WordRarity, *, candidates: int, metadata: bool
) -> Lesson:
    """The lesson of a run whose data are encoded already."""
    held_out = held_out_of(run, scoring)
    queries = queries_held_out(run, held_out, scoring)
    items = items_held_out(run) if metadata else None
    described = describe(queries, rarity, candidates=candidates, items=items)
    return Lesson(
        rows=run.slices.held_out,
        described=described,
        held_out=held_out,
        positive=described.positive,
        counted=described.counted,
    )


def learn(
    lessons: Sequence[Lesson], used: Sequence[Bools], *, trees: int, seed: int
) -> LearnedTrees:
    """Learn so many trees from the candidates of each lesson that are `used` [m] and count."""
    features, positive, sizes = [], [], []
    for lesson, use in zip(lessons, used, strict=True):
        places = np.nonzero(use & lesson.counted)[0]
        features.append(lesson.described.features[places])
        positive.append(lesson.positive[places])
        sizes += lesson.described.candidates.only(places).counts.tolist()
    return learn_trees(
        np.concatenate(features),
        np.concatenate(positive),
        sizes,
        names=lessons[0].described.names,
        trees=trees,
        seed=seed,
    )

"""Learns a reranker on a run's held-out rows, and chooses its number of trees.

The number is chosen by cross-validation over the same rows.

Shapes: n rows, m candidates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from service.core.errors import InvalidInput
from service.core.prediction.reranking.text_overlap import WordRarity
from service.core.types import Bools, Doubles, Rows
from training.checkpoints.reranker_folder import weights_digest
from training.datasets.metadata_links import require_metadata
from training.evaluation.prediction import Ranked
from training.models.precision import Precision
from training.progress import Report
from training.reranking.candidates import queries_held_out
from training.reranking.described import Described, describe, items_held_out
from training.reranking.finished_run import FinishedRun, held_out_of, scoring_of
from training.reranking.trees import Calibration, LearnedTrees, calibrate, learn_trees
from training.scoring import Scoring
from training.selection.validation import (
    Gain,
    HeldOutRetrieval,
    ValidationSettings,
    criterion,
    gain_of_rows,
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Lesson:
    """The held-out rows of one run, with their candidates' features."""

    rows: Rows  # [n] numbers of the rows in the training split
    described: Described
    held_out: HeldOutRetrieval

    def within(self, fold_of: Rows, fold: int) -> Bools:
        """Return a mask [m] of one fold's candidates; `fold_of` gives each row's fold."""
        inside: Bools = fold_of[self.rows][self.described.candidates.queries] == fold
        return inside

    def score(self, ranked: Ranked) -> float:
        """The mean of the metrics by which the number of trees is chosen."""
        table = self.held_out.measure(ranked)
        return criterion({0.0: table}, ValidationSettings().metrics)

    def score_by(self, sums: Doubles) -> float:
        """Return the score if the candidates are ranked by these sums of trees [m]."""
        return self.score(self.described.ranked_by(sums))

    def rows_by(self, sums: Doubles | None) -> NDArray[np.float64]:
        """P@1, P@5 and R@100 of each row with a label that counts, [., 3]; None ranks by votes."""
        described = self.described
        ranked = described.ranked_by_votes() if sums is None else described.ranked_by(sums)
        return self.held_out.rows_of(ranked)


def lesson_of(
    run: FinishedRun, scoring: Scoring, rarity: WordRarity, *, candidates: int, metadata: bool
) -> Lesson:
    """The lesson of a run whose data are already encoded."""
    held_out = held_out_of(run, scoring)
    queries = queries_held_out(run, held_out, scoring)
    items = items_held_out(run) if metadata else None
    described = describe(queries, rarity, candidates=candidates, items=items)
    return Lesson(rows=run.slices.held_out, described=described, held_out=held_out)


def learn(
    lessons: Sequence[Lesson], used: Sequence[Bools], *, trees: int, seed: int
) -> LearnedTrees:
    """Learn `trees` trees from each lesson's candidates that are `used` [m] and not filtered."""
    features, positive, sizes = [], [], []
    for lesson, use in zip(lessons, used, strict=True):
        described = lesson.described
        places = np.nonzero(use & described.counted)[0]
        features.append(described.features[places])
        positive.append(described.positive[places])
        sizes += described.candidates.only(places).counts.tolist()
    return learn_trees(
        np.concatenate(features),
        np.concatenate(positive),
        sizes,
        names=lessons[0].described.names,
        trees=trees,
        seed=seed,
    )


CANDIDATES = 100
FOLDS = 5
TREES = (0, 50, 100, 150, 200, 300, 400)  # to choose from; 0 is the memory's own order


@dataclass(frozen=True, kw_only=True)
class RerankSettings:
    """Settings for learning a reranker."""

    candidates: int = CANDIDATES  # labels per query that are reranked
    metadata: bool = False  # also read the metadata items of queries and labels
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class RerankChoice:
    """The chosen number of trees, and the held-out score of each number that was tried.

    `gain` compares the best number with the memory's own order. If it does not exceed its standard
    error, no trees are chosen.
    """

    trees: int
    gain: Gain
    held_out: dict[int, float]  # mean of the choosing metrics, by number of trees
    rows: int  # held-out rows used for learning and choosing


@dataclass(frozen=True, kw_only=True, eq=False)
class LearnedReranker:
    """The learned reranker; `trees` is None if the memory's own order is better.

    `weights` is the digest of the run's checkpoint.
    """

    settings: RerankSettings
    weights: str
    scoring: Scoring  # of the run
    rarity: WordRarity
    choice: RerankChoice
    trees: LearnedTrees | None
    calibration: Calibration
    learned_from: tuple[str, ...]  # folders of the runs whose held-out rows were used


def learn_reranker(
    run: FinishedRun,
    others: Sequence[FinishedRun],
    settings: RerankSettings,
    *,
    precision: Precision,
    report: Report,
) -> LearnedReranker:
    """Learn to order what a run's memory ranks, on the rows that the run and `others` hold out.

    Raises `InvalidInput` for a run that holds out fewer rows than there are folds, and for metadata
    that the data lack.
    """
    _check(run, settings)
    encode = partial(scoring_of, precision=precision, report=report)
    scoring, rarity = encode(run), WordRarity.among(run.dataset.labels.texts)
    described = partial(
        lesson_of, rarity=rarity, candidates=settings.candidates, metadata=settings.metadata
    )
    lessons = [described(run, scoring), *(described(other, encode(other)) for other in others)]
    choice, sums = choose_trees(lessons, len(run.dataset.train), seed=settings.seed, report=report)
    everything = [np.ones(len(lesson.described.positive), bool) for lesson in lessons]
    trees = None
    if choice.trees:
        trees = learn(lessons, everything, trees=choice.trees, seed=settings.seed)
    counted = np.concatenate([lesson.described.counted for lesson in lessons])
    positive = np.concatenate([lesson.described.positive for lesson in lessons])
    return LearnedReranker(
        settings=settings,
        weights=weights_digest(run.best),
        scoring=scoring,
        rarity=rarity,
        choice=choice,
        trees=trees,
        calibration=calibrate(np.concatenate(sums)[counted], positive[counted]),
        learned_from=tuple(str(one.folder) for one in (run, *others)),
    )


def choose_trees(
    lessons: Sequence[Lesson], rows: int, *, seed: int, report: Report
) -> tuple[RerankChoice, list[Doubles]]:
    """The number of trees with the best mean of metrics; 0 if the gain is too small.

    Cross-validation: in every lesson, each of the `rows` training rows is ranked by trees that
    learned without it. Also returns the sums of the best number's trees, [m] for each lesson.
    """
    fold_of = np.random.default_rng([seed, 21]).permutation(rows) % FOLDS
    tables = [
        np.zeros((len(TREES), len(lesson.described.positive))) for lesson in lessons
    ]  # [T, m]
    for fold in range(FOLDS):
        inside = [lesson.within(fold_of, fold) for lesson in lessons]
        learned = learn(lessons, [~one for one in inside], trees=max(TREES), seed=seed)
        for lesson, places, table in zip(lessons, inside, tables, strict=True):
            features = lesson.described.features[places]
            for place, trees in enumerate(TREES[1:], start=1):
                table[place, places] = learned.scores(features, trees=trees)
        report("choose the number of trees", fold + 1, FOLDS)
    of_lessons = [
        [
            lesson.score(lesson.described.ranked_by_votes()),
            *(lesson.score_by(sums) for sums in table[1:]),
        ]
        for lesson, table in zip(lessons, tables, strict=True)
    ]  # [lessons, T]
    found = dict(zip(TREES, np.mean(of_lessons, axis=0).tolist(), strict=True))
    best = max(TREES[1:], key=lambda trees: found[trees])
    sums = [table[TREES.index(best)] for table in tables]
    gain = gain_of_rows(
        found[best] - found[0],
        np.concatenate([lesson.rows_by(of) for lesson, of in zip(lessons, sums, strict=True)]),
        np.concatenate([lesson.rows_by(None) for lesson in lessons]),
    )
    rows_used = sum(len(lesson.rows) for lesson in lessons)
    trees = best if gain.counts else 0
    return RerankChoice(trees=trees, gain=gain, held_out=found, rows=rows_used), sums


def _check(run: FinishedRun, settings: RerankSettings) -> None:
    rows = len(run.slices.held_out)
    if rows < FOLDS:
        raise InvalidInput(f"{run.folder} holds out {rows} rows; trees need {FOLDS} at least")
    if settings.metadata:
        require_metadata(run.dataset, reader="--metadata reads")

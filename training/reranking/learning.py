"""Learn a second ranking on a run's held-out rows, and choose how many trees it has.

How many trees are best is chosen by cross-validation over the rows that they learn from.

Shapes: n rows, m candidates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from service.core.errors import InvalidInput
from service.core.prediction.reranking.text_overlap import WordRarity
from service.core.types import Doubles
from training.checkpoints.weights_digest import weights_digest
from training.combining.run_scoring import scoring_of
from training.combining.runs import FinishedRun
from training.datasets.metadata_links import require_metadata
from training.experiments.sweeps import Scoring
from training.models.precision import Precision
from training.progress import Report
from training.reranking.calibration import Calibration, calibrate
from training.reranking.lessons import Lesson, learn, lesson_of
from training.reranking.trees import LearnedTrees
from training.selection.gain import Gain, gain_of_rows

CANDIDATES = 100
FOLDS = 5
TREES = (0, 50, 100, 150, 200, 300, 400)  # that compete; 0 is the memory's own order


@dataclass(frozen=True, kw_only=True)
class RerankSettings:
    """How a second ranking is learned."""

    candidates: int = CANDIDATES  # of each query that are ranked again
    metadata: bool = False  # read the items that queries and labels are linked to as well
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class RerankChoice:
    """The number of trees, and the held-out score of each that competed.

    `gain` is that of the best number over the memory's own order. Where it does not exceed its
    standard error, that order is chosen: no trees.
    """

    trees: int
    gain: Gain
    held_out: dict[int, float]  # the mean of the metrics that choose, by number of trees
    rows: int  # on which trees learned and were chosen


@dataclass(frozen=True, kw_only=True, eq=False)
class SecondRanking:
    """What was learned and chosen; `trees` is None where the memory's own order is better.

    `weights` is the digest of the run's checkpoint.
    """

    settings: RerankSettings
    weights: str
    scoring: Scoring  # of the run
    rarity: WordRarity
    choice: RerankChoice
    trees: LearnedTrees | None
    calibration: Calibration
    learned_from: tuple[str, ...]  # the folders of the runs whose held-out rows teach


def learn_second_ranking(
    run: FinishedRun,
    others: Sequence[FinishedRun],
    settings: RerankSettings,
    *,
    precision: Precision,
    report: Report,
) -> SecondRanking:
    """Learn on the rows that a run and `others` hold out, to order what the run's memory ranks.

    Raises `InvalidInput` for a run that holds out fewer rows than there are folds, and for metadata
    that the data have not.
    """
    _check(run, settings)
    encode = partial(scoring_of, precision=precision, report=report)
    scoring, rarity = encode(run), WordRarity.among(run.dataset.labels.texts)
    described = partial(
        lesson_of, rarity=rarity, candidates=settings.candidates, metadata=settings.metadata
    )
    lessons = [described(run, scoring), *(described(other, encode(other)) for other in others)]
    choice, sums = choose_trees(lessons, len(run.dataset.train), seed=settings.seed, report=report)
    everything = [np.ones(len(lesson.positive), bool) for lesson in lessons]
    trees = None
    if choice.trees:
        trees = learn(lessons, everything, trees=choice.trees, seed=settings.seed)
    counted = np.concatenate([lesson.counted for lesson in lessons])
    positive = np.concatenate([lesson.positive for lesson in lessons])
    return SecondRanking(
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
    """The number of trees with the best mean of metrics; none where they gain too little.

    Each of the training rows, `rows` in number, is ranked by trees that learned without it, in
    every lesson. Returns these sums of the best number as well, [m] for each lesson.
    """
    fold_of = np.random.default_rng([seed, 21]).permutation(rows) % FOLDS
    tables = [np.zeros((len(TREES), len(lesson.positive))) for lesson in lessons]  # [T, m]
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

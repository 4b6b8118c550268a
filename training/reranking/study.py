"""Learn a second ranking on a run's held-out rows, choose how many trees, and measure it.

How many trees are best is chosen by cross-validation over the rows that they learn from.

Shapes: n rows, m candidates.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np

from service.core.errors import InvalidInput
from service.core.types import Doubles
from training.combining.processor_time import timed
from training.combining.runs import FinishedRun
from training.datasets.dataset import Dataset
from training.datasets.metadata_links import require_metadata
from training.evaluation.results import measured
from training.experiments.sweeps import Measured, Scoring, open_scoring
from training.models.precision import Precision
from training.progress import Report
from training.reranking.candidates import PER_QUERY
from training.reranking.described import Described, describe, items_of_test, queries_of_test
from training.reranking.lessons import Lesson, learn, lesson_of
from training.reranking.trees import Trees

FOLDS = 5
TREES = (0, 50, 100, 150, 200, 300, 400)  # that compete; 0 is the memory's own order
RERANKED, MEMORY = "reranked", "memory"


@dataclass(frozen=True, kw_only=True)
class RerankCost:
    """Milliseconds of processor time of a test query beyond the run's own search and votes."""

    features: float
    trees: float


@dataclass(frozen=True, kw_only=True)
class RerankChoice:
    """The number of trees, and the held-out score of each that competed."""

    trees: int
    held_out: dict[int, float]  # the mean of the metrics that choose, by number of trees
    rows: int  # on which trees learned and were chosen


@dataclass(frozen=True, kw_only=True, eq=False)
class Reranked:
    """What was learned and chosen, and the results, the chosen one first."""

    trees: Trees
    choice: RerankChoice
    learned_from: tuple[str, ...]  # the folders of the runs whose held-out rows teach
    metadata: bool
    results: list[Measured]
    cost: RerankCost

    def as_settings(self) -> dict[str, Any]:
        """The table `rerank` of the results' settings."""
        return {
            "learned_from": list(self.learned_from),
            "metadata": self.metadata,
            "trees": self.choice.trees,
            "candidates": PER_QUERY,
            "held_out": {str(trees): one for trees, one in self.choice.held_out.items()},
            "gains": self.trees.gains(),
            "cost_ms": asdict(self.cost),
        }


def rerank_run(
    run: FinishedRun,
    others: Sequence[FinishedRun],
    *,
    metadata: bool,
    precision: Precision,
    seed: int,
    report: Report,
) -> Reranked:
    """Learn on the rows that a run and `others` hold out, and measure the run on the test rows.

    With `metadata`, trees read the items that queries and labels are linked to as well. Raises
    `InvalidInput` for a run that holds out fewer rows than there are folds, and for metadata that
    the data have not.
    """
    dataset = run.dataset
    _check(run, metadata=metadata)
    open_ = partial(_scoring, precision=precision, report=report)
    lessons = [lesson_of(other, open_(other), metadata=metadata) for other in others]
    scoring = open_(run)
    lessons = [lesson_of(run, scoring, metadata=metadata), *lessons]
    choice = choose_trees(lessons, len(dataset.train), seed=seed, report=report)
    everything = [np.ones(len(lesson.described.candidates), bool) for lesson in lessons]
    trees = learn(lessons, everything, trees=choice.trees, seed=seed)
    queries, items = queries_of_test(scoring), items_of_test(dataset) if metadata else None
    test, features = timed(lambda: describe(queries, scoring, items))
    scores, ranking = timed(lambda: trees.scores(test.features, trees=choice.trees))
    return Reranked(
        trees=trees,
        choice=choice,
        learned_from=tuple(str(one.folder) for one in (run, *others)),
        metadata=metadata,
        results=_results(dataset, test, scores, choice),
        cost=RerankCost(features=features / len(queries), trees=ranking / len(queries)),
    )


def choose_trees(
    lessons: Sequence[Lesson], rows: int, *, seed: int, report: Report
) -> RerankChoice:
    """The number of trees with the best mean of metrics, of equal ones the fewest.

    Each of the training rows, `rows` in number, is ranked by trees that learned without it, in
    every lesson.
    """
    fold_of = np.random.default_rng([seed, 21]).permutation(rows) % FOLDS
    scores = [
        {trees: np.zeros(len(lesson.described.candidates)) for trees in TREES if trees}
        for lesson in lessons
    ]
    for fold in range(FOLDS):
        inside = [lesson.within(fold_of, fold) for lesson in lessons]
        learned = learn(lessons, [~one for one in inside], trees=max(TREES), seed=seed)
        for lesson, places, of_lesson in zip(lessons, inside, scores, strict=True):
            features = lesson.described.features[places]
            for trees, out in of_lesson.items():
                out[places] = learned.scores(features, trees=trees)
        report("choose the number of trees", fold + 1, FOLDS)
    found = {trees: _score(lessons, column) for trees, column in _columns(lessons, scores)}
    return RerankChoice(
        trees=max(found, key=lambda trees: found[trees]),
        held_out=found,
        rows=sum(len(lesson.rows) for lesson in lessons),
    )


def _score(lessons: Sequence[Lesson], scores: Sequence[Doubles]) -> float:
    """The mean over the lessons, each with its scores [m]."""
    of_each = [lesson.score(one) for lesson, one in zip(lessons, scores, strict=True)]
    return float(np.mean(of_each))


def _columns(
    lessons: Sequence[Lesson], scores: Sequence[Mapping[int, Doubles]]
) -> Iterator[tuple[int, list[Doubles]]]:
    """By number of trees, the scores in each lesson."""
    yield 0, [lesson.described.candidates.scores for lesson in lessons]
    for trees in scores[0]:
        yield trees, [of_lesson[trees] for of_lesson in scores]


def _check(run: FinishedRun, *, metadata: bool) -> None:
    rows = len(run.slices.held_out)
    if rows < FOLDS:
        raise InvalidInput(f"{run.folder} holds out {rows} rows; trees need {FOLDS} at least")
    if metadata:
        require_metadata(run.dataset, reader="--metadata reads")


def _scoring(run: FinishedRun, *, precision: Precision, report: Report) -> Scoring:
    return open_scoring(
        str(run.best), run.dataset, folder=run.best, precision=precision, report=report
    )


def _results(
    dataset: Dataset, test: Described, scores: Doubles, choice: RerankChoice
) -> list[Measured]:
    """The chosen order first, then the other one."""
    ways = {RERANKED: scores, MEMORY: test.candidates.scores}
    chosen = RERANKED if choice.trees else MEMORY
    return [
        measured(dataset, test.ranked_by(ways[way]), method=way, chosen=way == chosen)
        for way in sorted(ways, key=lambda way: way != chosen)
    ]

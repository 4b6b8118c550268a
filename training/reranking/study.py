"""Learn a second ranking on a run's held-out rows, choose how many trees, and measure it.

How many trees are best is chosen by cross-validation over the rows that they learn from.

Shapes: n rows, m candidates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np

from service.core.errors import InvalidInput
from service.core.types import Doubles
from training.combining.processor_time import timed
from training.combining.run_scoring import scoring_of
from training.combining.runs import FinishedRun
from training.datasets.dataset import Dataset
from training.datasets.metadata_links import require_metadata
from training.evaluation.results import measured
from training.experiments.sweeps import Measured
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
    encode = partial(scoring_of, precision=precision, report=report)
    scoring = encode(run)
    lessons = [
        lesson_of(run, scoring, metadata=metadata),
        *(lesson_of(other, encode(other), metadata=metadata) for other in others),
    ]
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
    # The scores of each lesson's candidates by each number of trees, [T, m]; the first stay.
    tables = [np.tile(lesson.described.candidates.scores, (len(TREES), 1)) for lesson in lessons]
    for fold in range(FOLDS):
        inside = [lesson.within(fold_of, fold) for lesson in lessons]
        learned = learn(lessons, [~one for one in inside], trees=max(TREES), seed=seed)
        for lesson, places, table in zip(lessons, inside, tables, strict=True):
            features = lesson.described.features[places]
            for place, trees in enumerate(TREES[1:], start=1):
                table[place, places] = learned.scores(features, trees=trees)
        report("choose the number of trees", fold + 1, FOLDS)
    of_lessons = [
        [lesson.score(scores) for scores in table]
        for lesson, table in zip(lessons, tables, strict=True)
    ]  # [lessons, T]
    found = dict(zip(TREES, np.mean(of_lessons, axis=0).tolist(), strict=True))
    return RerankChoice(
        trees=max(found, key=lambda trees: found[trees]),
        held_out=found,
        rows=sum(len(lesson.rows) for lesson in lessons),
    )


def _check(run: FinishedRun, *, metadata: bool) -> None:
    rows = len(run.slices.held_out)
    if rows < FOLDS:
        raise InvalidInput(f"{run.folder} holds out {rows} rows; trees need {FOLDS} at least")
    if metadata:
        require_metadata(run.dataset, reader="--metadata reads")


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

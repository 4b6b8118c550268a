"""Learn a second ranking on a run's held-out rows, choose how many trees, and measure it.

Trees learn from candidates of rows that the run did not train on, since rows that it trained on
find themselves. How many trees are best is chosen by cross-validation over these rows.

Shapes: n rows, m candidates.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from service.core.errors import InvalidInput
from service.core.types import Doubles, Rows
from training.combining.held_out import held_out_of
from training.combining.processor_time import timed
from training.combining.runs import FinishedRun
from training.datasets.dataset import Dataset
from training.datasets.metadata_links import require_metadata
from training.evaluation.metrics import evaluate
from training.evaluation.results import measured
from training.experiments.sweeps import Measured, open_scoring
from training.models.precision import Precision
from training.progress import Report
from training.reranking.candidates import PER_QUERY, entries
from training.reranking.described import (
    Described,
    describe,
    items_held_out,
    items_of_test,
    queries_held_out,
    queries_of_test,
)
from training.reranking.trees import Trees, learn_trees
from training.selection.validation import HeldOutRetrieval, ValidationSettings, criterion

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
    candidates: int  # of a query
    results: list[Measured]
    cost: RerankCost


def rerank_run(
    run: FinishedRun, *, metadata: bool, precision: Precision, seed: int, report: Report
) -> Reranked:
    """Learn on the rows that a run holds out, and measure on the test rows.

    With `metadata`, trees read the items that queries and labels are linked to as well. Raises
    `InvalidInput` for a run that holds out fewer rows than there are folds, and for metadata that
    the data have not.
    """
    dataset, rows = run.dataset, len(run.slices.held_out)
    if rows < FOLDS:
        raise InvalidInput(f"{run.folder} holds out {rows} rows; trees need {FOLDS} at least")
    if metadata:
        require_metadata(dataset, reader="--metadata reads")
    scoring = open_scoring(
        str(run.best), dataset, folder=run.best, precision=precision, report=report
    )
    held = held_out_of(run, scoring)
    learned_on = describe(
        queries_held_out(run, held, scoring), scoring, items_held_out(run) if metadata else None
    )
    choice = choose_trees(learned_on, held, seed=seed, report=report)
    everything = np.arange(len(learned_on.candidates))
    trees = learn(learned_on, everything, trees=choice.trees, seed=seed)
    queries, items = queries_of_test(scoring), items_of_test(dataset) if metadata else None
    test, features = timed(lambda: describe(queries, scoring, items))
    scores, ranking = timed(lambda: trees.scores(test.features, trees=choice.trees))
    return Reranked(
        trees=trees,
        choice=choice,
        candidates=PER_QUERY,
        results=_results(dataset, test, scores, choice),
        cost=RerankCost(features=features / len(queries), trees=ranking / len(queries)),
    )


def choose_trees(
    described: Described, held: HeldOutRetrieval, *, seed: int, report: Report
) -> RerankChoice:
    """The number of trees with the best mean of metrics, of equal ones the fewest.

    Each row is ranked by trees that learned without it.
    """
    candidates, count = described.candidates, len(described.queries)
    fold_of = np.random.default_rng([seed, 21]).permutation(count) % FOLDS
    scores = {trees: np.zeros(len(candidates)) for trees in TREES if trees}
    for fold in range(FOLDS):
        inside = fold_of[candidates.queries] == fold
        learned = learn(described, np.nonzero(~inside)[0], trees=max(TREES), seed=seed)
        for trees, out in scores.items():
            out[inside] = learned.scores(described.features[inside], trees=trees)
        report("choose the number of trees", fold + 1, FOLDS)
    scores = {0: candidates.scores, **scores}
    found = {trees: _criterion(described, held, of) for trees, of in scores.items()}
    return RerankChoice(
        trees=max(found, key=lambda trees: found[trees]), held_out=found, rows=count
    )


def learn(described: Described, places: Rows, *, trees: int, seed: int) -> Trees:
    """Learn from the candidates at ascending `places`; those that are filtered do not count."""
    queries = described.queries
    filtered = entries(queries.filtered != 0, described.candidates.only(places)) != 0
    places = places[~filtered]
    candidates = described.candidates.only(places)
    return learn_trees(
        described.features[places],
        entries(queries.positives != 0, candidates) != 0,
        candidates.counts.tolist(),
        names=described.names,
        trees=max(trees, 1),
        seed=seed,
    )


def _criterion(described: Described, held: HeldOutRetrieval, scores: Doubles) -> float:
    table = evaluate(
        described.ranked_by(scores),
        held.positives,
        inverse_propensities=held.inverse_propensities,
        filtered=held.filtered,
    )
    return criterion({0.0: table}, ValidationSettings().metrics)


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

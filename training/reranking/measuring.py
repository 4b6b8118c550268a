"""Measures a reranker on the test rows: a newly learned one, or that of a checkpoint.

Shapes: n rows, m candidates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import process_time
from typing import Any, TypeVar

import numpy as np

from service.core.prediction.reliability import calibration_error
from service.core.prediction.reranking.reranker import reranker_of
from training.checkpoints import reranker_folder
from training.evaluation.prediction import candidates_of, rerank_labels
from training.evaluation.results import RERANKED, measured
from training.reranking.candidates import queries_of_test
from training.reranking.described import describe, items_of_test
from training.reranking.learning import LearnedReranker
from training.reranking.written import onnx_trees
from training.scoring import Measured, Scoring

MEMORY = "memory"
Value = TypeVar("Value")


@dataclass(frozen=True, kw_only=True)
class RerankCost:
    """Milliseconds of CPU time per test query, in addition to search and votes."""

    features: float
    trees: float


@dataclass(frozen=True, kw_only=True, eq=False)
class Reranked:
    """A reranker and its results on the test rows; the first is the chosen order's."""

    learned: LearnedReranker
    results: list[Measured]
    cost: RerankCost
    calibration_error: float  # of all candidates' probabilities

    def as_settings(self) -> dict[str, Any]:
        """The table `rerank` in the results' settings."""
        learned, choice = self.learned, self.learned.choice
        return {
            "learned_from": list(learned.learned_from),
            "metadata": learned.settings.metadata,
            "candidates": learned.settings.candidates,
            "trees": choice.trees,
            "gain": asdict(choice.gain),
            "held_out": {str(trees): one for trees, one in choice.held_out.items()},
            "gains": {} if learned.trees is None else learned.trees.gains(),
            "calibration": {**asdict(learned.calibration), "error": self.calibration_error},
            "cost_ms": asdict(self.cost),
        }


def measure_reranker(learned: LearnedReranker) -> Reranked:
    """Rank the test rows by the memory and, if trees were learned, by the trees."""
    scoring, settings = learned.scoring, learned.settings
    dataset, queries = scoring.dataset, queries_of_test(scoring)
    items = items_of_test(dataset) if settings.metadata else None
    test, features = timed(
        lambda: describe(queries, learned.rarity, candidates=settings.candidates, items=items)
    )
    memory = measured(dataset, test.ranked_by_votes(), method=MEMORY, chosen=learned.trees is None)
    if learned.trees is None:
        cost = RerankCost(features=0.0, trees=0.0)
        return Reranked(learned=learned, results=[memory], cost=cost, calibration_error=0.0)
    trees = onnx_trees(learned.trees)
    sums, ranking = timed(lambda: trees.scores(test.features))
    reranked = measured(dataset, test.ranked_by(sums), method=RERANKED, chosen=True)
    return Reranked(
        learned=learned,
        results=[reranked, memory],
        cost=RerankCost(features=features / len(queries), trees=ranking / len(queries)),
        calibration_error=calibration_error(
            learned.calibration.probabilities(sums)[test.counted], test.positive[test.counted]
        ),
    )


def timed(work: Callable[[], Value]) -> tuple[Value, float]:
    """Return the result of `work` and its CPU time in milliseconds, over all threads."""
    start = process_time()
    value = work()
    return value, 1_000.0 * (process_time() - start)


def with_reranker(results: Sequence[Measured], scoring: Scoring, folder: Path) -> list[Measured]:
    """Return a checkpoint's results, preceded by its reranker's result if it has a reranker.

    The reranker's result is then the chosen one.
    """
    if not reranker_folder.is_reranker(folder):
        return list(results)
    others = [(replace(result, chosen=False), rows) for result, rows in results]
    return [_reranked(scoring, folder), *others]


def _reranked(scoring: Scoring, folder: Path) -> Measured:
    files, queries = reranker_folder.read(folder), queries_of_test(scoring)
    choices, memory = scoring.choices, scoring.memory
    frequencies = memory.frequencies_of(np.arange(len(memory.label_ids)))
    reranker = reranker_of(files, trained=frequencies.astype(np.int32))
    ranked = queries.ranked(max(queries.top_k, files.facts.candidates))
    again = rerank_labels(
        reranker,
        memory,
        candidates_of(queries.texts, queries.vectors, queries.retrieved, ranked),
        top_k=queries.top_k,
        order=memory.label_order,
    )
    return measured(
        scoring.dataset,
        again.labels,
        method=RERANKED,
        memorization=choices.memorization,
        depth=choices.depth,
        tau=choices.tau,
        chosen=True,
        weighted=scoring.weighted,
    )

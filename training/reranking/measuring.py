"""Measure a second ranking on the test rows, beside the memory's own.

Shapes: n rows, m candidates.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from service.core.types import Doubles
from training.combining.processor_time import timed
from training.evaluation.results import RERANKED, measured
from training.experiments.sweeps import Measured
from training.reranking.calibration import calibration_error
from training.reranking.described import Described, describe
from training.reranking.item_features import items_of_test
from training.reranking.learning import SecondRanking
from training.reranking.queries import queries_of_test
from training.reranking.written import onnx_trees

MEMORY = "memory"


@dataclass(frozen=True, kw_only=True)
class RerankCost:
    """Milliseconds of processor time of a test query beyond the run's own search and votes."""

    features: float
    trees: float


@dataclass(frozen=True, kw_only=True, eq=False)
class Reranked:
    """A second ranking, and the results on the test rows, the chosen order first."""

    second: SecondRanking
    results: list[Measured]
    cost: RerankCost
    calibration_error: float  # of the probabilities of all candidates

    def as_settings(self) -> dict[str, Any]:
        """The table `rerank` of the results' settings."""
        second, choice = self.second, self.second.choice
        return {
            "learned_from": list(second.learned_from),
            "metadata": second.settings.metadata,
            "candidates": second.settings.candidates,
            "trees": choice.trees,
            "gain": asdict(choice.gain),
            "held_out": {str(trees): one for trees, one in choice.held_out.items()},
            "gains": {} if second.trees is None else second.trees.gains(),
            "calibration": {**asdict(second.calibration), "error": self.calibration_error},
            "cost_ms": asdict(self.cost),
        }


def measure_second_ranking(second: SecondRanking) -> Reranked:
    """Rank the test rows by the memory and, where trees were learned, by these."""
    scoring, settings = second.scoring, second.settings
    dataset, queries = scoring.dataset, queries_of_test(scoring)
    items = items_of_test(dataset) if settings.metadata else None
    test, features = timed(
        lambda: describe(queries, second.rarity, candidates=settings.candidates, items=items)
    )
    memory = measured(dataset, test.ranked_by_votes(), method=MEMORY, chosen=second.trees is None)
    if second.trees is None:
        cost = RerankCost(features=0.0, trees=0.0)
        return Reranked(second=second, results=[memory], cost=cost, calibration_error=0.0)
    trees = onnx_trees(second.trees)
    sums, ranking = timed(lambda: trees.scores(test.features))
    reranked = measured(dataset, test.ranked_by(sums), method=RERANKED, chosen=True)
    return Reranked(
        second=second,
        results=[reranked, memory],
        cost=RerankCost(features=features / len(queries), trees=ranking / len(queries)),
        calibration_error=_calibration_error(second.calibration.probabilities(sums), test),
    )


def _calibration_error(probabilities: Doubles, test: Described) -> float:
    return calibration_error(probabilities[test.counted], test.positive[test.counted])

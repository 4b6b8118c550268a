"""Scores of several runs mixed: weights and normalisation are chosen on held-out rows.

Each run's memory ranks the labels as its own chosen settings say. A query is encoded by every run
whose weight is not 0, so a mix costs as many encodings and searches.

Shapes: n rows, N training rows, L labels, r runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from typing import Any

from service.core.prediction.many_queries import LabelOrder, RankedLabels
from service.core.types import Role
from training.combining.processor_time import timed
from training.combining.run_scoring import held_out_of, scoring_of
from training.combining.runs import FinishedRun
from training.datasets.dataset import Dataset
from training.datasets.propensity import inverse_propensity
from training.evaluation.encode_texts import encode_texts
from training.evaluation.metrics import evaluate, labels_to_rank
from training.evaluation.mixed_scores import NORMALIZATIONS, Candidates, rank_mixed, union_of
from training.evaluation.prediction import OfflineMemory, RetrievedKeys, predict
from training.evaluation.results import measured
from training.experiments.sweeps import Measured, Scoring
from training.models.precision import Precision
from training.models.torch_encoder import load_encoder
from training.progress import Report
from training.selection.validation import (
    Slices,
    ValidationSettings,
    criterion,
)

MOST_RUNS = 3
STEPS = 10  # weights are multiples of a tenth
CANDIDATES = 300  # ranked labels of each run
TIMED_QUERIES = 1_000

METHOD, ALONE = "mix", "{} alone"


@dataclass(frozen=True, kw_only=True)
class MixChoices:
    """A weight for each run, which sum to 1, and the normalisation; `held_out` is their score."""

    weights: tuple[float, ...]
    normalization: str
    held_out: float  # the mean of the metrics that choose, on the held-out rows


@dataclass(frozen=True, kw_only=True)
class QueryCost:
    """Milliseconds of processor time that a test query took in one run, in batches."""

    run: str
    encode: float
    search: float  # every key is scanned
    rank: float


@dataclass(frozen=True, kw_only=True)
class MixedScores:
    """What was chosen, the results, the chosen one first, and what they cost."""

    choices: MixChoices
    alone: tuple[float, ...]  # the held-out score of each run by itself
    results: list[Measured]
    costs: tuple[QueryCost, ...]
    mixing: float  # milliseconds of a query

    @property
    def encodings(self) -> int:
        """How often a query is encoded."""
        return sum(weight > 0.0 for weight in self.choices.weights)

    @property
    def processor_milliseconds(self) -> float:
        """The processor time of a query, over the runs that have a weight."""
        weighted = zip(self.costs, self.choices.weights, strict=True)
        parts = (cost.encode + cost.search + cost.rank for cost, weight in weighted if weight)
        return sum(parts) + self.mixing

    def as_settings(self) -> dict[str, Any]:
        """The table `mix` of the results' settings."""
        return {
            "runs": [cost.run for cost in self.costs],
            **asdict(self.choices),
            "held_out_alone": list(self.alone),
            "encodings_per_query": self.encodings,
            "processor_ms_per_query": self.processor_milliseconds,
            "cost_ms": {
                cost.run: {"encode": cost.encode, "search": cost.search, "rank": cost.rank}
                for cost in self.costs
            },
        }


@dataclass(frozen=True, kw_only=True, eq=False)
class _RankedRun:
    """One run's ranking of the held-out rows and of all test rows, and what a query cost."""

    held_out: RankedLabels
    test: RankedLabels
    cost: QueryCost


def mixed_scores(
    runs: Sequence[FinishedRun], dataset: Dataset, *, precision: Precision, report: Report
) -> MixedScores:
    """Choose the mix on the rows that all runs hold out, and measure it on the test rows."""
    order = LabelOrder.of(dataset.labels.uids)
    ranked = [_ranked(run, precision=precision, report=report) for run in runs]
    choices, alone = choose_mix(
        [one.held_out for one in ranked], dataset, held_out=runs[0].slices, order=order
    )
    union = partial(union_of, normalization=choices.normalization, order=order)
    candidates, mixing = timed(lambda: union([one.test for one in ranked]))
    top_k = labels_to_rank(dataset.test.filtered)
    best, ranking = timed(lambda: rank_mixed(candidates, choices.weights, top_k=top_k))
    chosen = measured(dataset, best, method=METHOD, chosen=True)
    return MixedScores(
        choices=choices,
        alone=alone,
        results=[chosen, *_others(runs, dataset, candidates, top_k=top_k)],
        costs=tuple(one.cost for one in ranked),
        mixing=(mixing + ranking) / len(dataset.test),
    )


def _others(
    runs: Sequence[FinishedRun], dataset: Dataset, candidates: Candidates, *, top_k: int
) -> Iterator[Measured]:
    """Each run by itself, and all with equal weights."""
    for place, run in enumerate(runs):
        weights = [float(place == other) for other in range(len(runs))]
        ranked = rank_mixed(candidates, weights, top_k=top_k)
        yield measured(dataset, ranked, method=ALONE.format(run.name))
    equal = rank_mixed(candidates, [1.0 / len(runs)] * len(runs), top_k=top_k)
    yield measured(dataset, equal, method="equal weights")


def choose_mix(
    rankings: Sequence[RankedLabels], dataset: Dataset, *, held_out: Slices, order: LabelOrder
) -> tuple[MixChoices, tuple[float, ...]]:
    """The best weights and normalisation on held-out rows, and each run's score by itself.

    `held_out` are the slices of the training rows that all runs hold out. Of equal mixes the first
    is taken: a run by itself comes first, since it costs least.
    """
    train, metrics = dataset.train, ValidationSettings().metrics
    positives, filtered = train.labels_of[held_out.held_out], train.filtered[held_out.held_out]
    propensities = inverse_propensity(
        train.labels_of[held_out.kept], a=dataset.propensity.a, b=dataset.propensity.b
    )
    top_k = labels_to_rank(filtered)

    def score(candidates: Candidates, weights: Sequence[float]) -> float:
        ranked = rank_mixed(candidates, weights, top_k=top_k)
        table = evaluate(ranked, positives, inverse_propensities=propensities, filtered=filtered)
        return criterion({0.0: table}, metrics)

    tried = [
        MixChoices(weights=weights, normalization=name, held_out=score(candidates, weights))
        for name in NORMALIZATIONS
        for candidates in (union_of(rankings, normalization=name, order=order),)
        for weights in weightings(len(rankings))
    ]
    tried.sort(key=lambda one: sum(weight > 0.0 for weight in one.weights))  # stable
    alone = {one.weights.index(1.0): one.held_out for one in tried if 1.0 in one.weights}
    best = max(tried, key=lambda one: one.held_out)
    return best, tuple(alone[place] for place in range(len(rankings)))


def weightings(runs: int) -> list[tuple[float, ...]]:
    """All weights of so many runs that are multiples of a tenth and sum to 1."""
    return [
        tuple(part / STEPS for part in parts)
        for parts in product(range(STEPS + 1), repeat=runs)
        if sum(parts) == STEPS
    ]


def _ranked(run: FinishedRun, *, precision: Precision, report: Report) -> _RankedRun:
    """Encode the data by a run, and rank its held-out and test rows as it chose."""
    scoring = scoring_of(run, precision=precision, report=report)
    queries = len(scoring.queries)
    retrieved, search = timed(lambda: scoring.retrieved)
    test, rank = timed(lambda: _predicted(scoring, scoring.memory, retrieved))
    cost = QueryCost(
        run=run.name,
        encode=_encoding_cost(run, precision=precision),
        search=search / queries,
        rank=rank / queries,
    )
    held = held_out_of(run, scoring)
    return _RankedRun(
        held_out=_predicted(scoring, held.memory, held.retrieved), test=test, cost=cost
    )


def _predicted(scoring: Scoring, memory: OfflineMemory, retrieved: RetrievedKeys) -> RankedLabels:
    """The labels of a memory's queries by the run's temperature, lambda and b."""
    choices = scoring.choices
    return predict(
        memory,
        retrieved.voting(choices.memorization, choices.depth),
        tau=choices.tau,
        memorization=choices.memorization,
        top_k=min(CANDIDATES, memory.labels_of.shape[1]),
        order=memory.label_order,
    )


def _encoding_cost(run: FinishedRun, *, precision: Precision) -> float:
    """Milliseconds of processor time to encode one of the first test queries, in batches."""
    encoder, texts = load_encoder(str(run.best)), run.dataset.test.instances.texts[:TIMED_QUERIES]
    encode = partial(encode_texts, encoder, role=Role.QUERY, precision=precision)
    encode(texts[:1])  # what is set up at the first call is not a query's
    return timed(lambda: encode(texts))[1] / len(texts)

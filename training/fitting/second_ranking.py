"""The last step of `fit`: trees rank the best labels of the kept run a second time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from training.checkpoints.run_json import BEST
from training.combining.runs import open_run
from training.datasets.dataset import Dataset
from training.fitting.facts import DataFacts
from training.fitting.time_left import Cost
from training.fitting.trial import Trial
from training.progress import Report
from training.reranking.learning import (
    FOLDS,
    RerankSettings,
    SecondRanking,
    learn_second_ranking,
)
from training.reranking.written import write

LARGEST_SHARE = 0.2  # of all the time
_A_ROW = 0.03  # seconds: features of a held-out row's candidates, and trees that learn from them
_AT_LEAST = 3.0  # seconds


def seconds_needed(facts: DataFacts, cost: Cost, *, of: float) -> float:
    """How long it takes, estimated: of all `of` seconds; 0 where that is too much of them.

    All texts are encoded once more, by the encoder that is kept.
    """
    needed = cost.encode + _A_ROW * facts.held_out + _AT_LEAST
    return needed if needed <= LARGEST_SHARE * of and facts.held_out >= FOLDS else 0.0


def learn(kept: Trial, dataset: Dataset, *, seed: int, report: Report) -> SecondRanking:
    """Learn on the held-out rows of the first split; the trees lie beside the checkpoint then.

    `dataset` has its pairs' weights as they were given.
    """
    run = open_run(kept.folder, dataset)
    settings = RerankSettings(seed=seed)
    second = learn_second_ranking(run, (), settings, precision="auto", report=report)
    write(second, kept.folder / BEST)
    return second


def lines(second: SecondRanking) -> Iterator[str]:
    """Say how much the trees gain, and whether they are kept."""
    choice, gain = second.choice, second.choice.gain
    gained = f"{gain.points:+.1f} ± {gain.error:.1f} points on the held-out rows"
    if not choice.trees:
        yield f"a second ranking by trees: {gained}, so the memory's own ranking is kept"
        return
    yield (
        f"a second ranking by {choice.trees} trees: {gained}; it is kept, and bundles of this run"
        " have it (`export bundle --reranker none` leaves it out)"
    )


def as_facts(second: SecondRanking) -> Mapping[str, Any]:
    """What was chosen, for run.json."""
    choice = second.choice
    return {
        "trees": choice.trees,
        "candidates": second.settings.candidates,
        "gain": choice.gain.points,
        "standard_error": choice.gain.error,
    }

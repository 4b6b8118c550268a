"""A trial: one candidate, trained and measured on the held-out rows.

Before any candidate, the untrained encoder's memory is tried with three scales of the vote weights:
as given in the data, their logarithm, or all equal.

Shapes: n held-out rows with a label that counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.table import Table
from rich.text import Text

from service.core.types import Rows
from training.checkpoints.choices import UNCHOSEN, Choices
from training.datasets.pair_weights import Relevance, relevance, vote_weights
from training.evaluation.known_queries import FIRST, IN_TEN
from training.selection.memory_choices import HUBS, MOST_LOST, WORDS, choose_on
from training.selection.validation import (
    Gain,
    HeldOutRetrieval,
    ValidationSettings,
    criterion,
    gain_of_rows,
)

METRICS = ValidationSettings().metrics  # the best mean of these wins
UNTRAINED, PARENT = "untrained", "parent"  # the first trial; a parent is an earlier run's encoder


@dataclass(frozen=True, kw_only=True, eq=False)
class Measured:
    """Metrics of one split's held-out rows in percent: their means, and those of each row, [n, 3].

    `numbers` [n] are the positions of these rows in the training split.
    """

    choices: Choices
    metrics: dict[str, float]
    rows: NDArray[np.float64]
    numbers: Rows


@dataclass(frozen=True, kw_only=True, eq=False)
class Trial:
    """Results of one candidate; `rows` has P@1, P@5 and R@100 of all held-out rows, [n, 3].

    A row that several splits hold out counts once, with its mean metrics. Checkpoint and choices
    are those of the first split.
    """

    name: str
    summary: str
    folder: Path
    choices: Choices
    metrics: dict[str, float]  # means over the held-out rows, in percent
    rows: NDArray[np.float64]
    seconds: float
    step: int = 0  # training step of the kept checkpoint
    mixing: float = 1.0

    @property
    def score(self) -> float:
        """The mean of P@1, P@5, R@100 and PSP@5, in percent."""
        return criterion({self.choices.memorization: self.metrics}, METRICS)


def gain(trial: Trial, over: Trial) -> Gain:
    """What `trial` gains over another, measured on the same rows."""
    return gain_of_rows(trial.score - over.score, trial.rows, over.rows)


def best_of(trials: Sequence[Trial]) -> Trial:
    """The trial to keep: a later one must gain more than the standard error without losing P@1.

    It must also keep known queries right.
    """
    kept = trials[0]
    for trial in trials[1:]:
        gains = gain(trial, kept).counts and trial.metrics["P@1"] >= trials[0].metrics["P@1"]
        if gains and keeps_known(trial, trials):
            kept = trial
    return kept


def keeps_known(trial: Trial, trials: Sequence[Trial]) -> bool:
    """Whether a trial answers known queries as well as the first one, up to `MOST_LOST` points."""
    return trial.metrics[FIRST] >= trials[0].metrics[FIRST] - MOST_LOST


def measure(held_out: HeldOutRetrieval, choices: Choices) -> Measured:
    """Measure the held-out rows of one split with these choices."""
    return Measured(
        choices=choices,
        metrics={**held_out.metrics(choices), **held_out.known_metrics(choices)},
        rows=held_out.rows(choices),
        numbers=held_out.counted(),
    )


def joined(measured: Sequence[Measured], **facts: Any) -> Trial:
    """Join a candidate's measurements on all splits into a trial; `facts` are its other fields."""
    first = measured[0]
    return Trial(
        choices=first.choices,
        metrics={
            name: float(np.mean([one.metrics[name] for one in measured])) for name in first.metrics
        },
        rows=_means_by_number(
            np.concatenate([one.rows for one in measured]),
            np.concatenate([one.numbers for one in measured]),
        ),
        **facts,
    )


def _means_by_number(rows: NDArray[np.float64], numbers: Rows) -> NDArray[np.float64]:
    """The mean of the rows [n, 3] that share a number [n], by ascending number."""
    _, place, counts = np.unique(numbers, return_inverse=True, return_counts=True)
    sums = np.zeros((len(counts), rows.shape[1]))
    np.add.at(sums, place, rows)
    means: NDArray[np.float64] = sums / counts[:, None]
    return means


def table_of(trials: Sequence[Trial], *, kept: Trial) -> Table:
    """A table with a row per trial: its gain over the first encoder, and the standard error."""
    table = Table(
        "tried", *METRICS, "mean gained", "known", "seconds", title="on the held-out rows",
        title_justify="left", show_edge=False,
    )  # fmt: skip
    for column in table.columns:
        column.no_wrap = True
    for column in table.columns[1:]:
        column.justify = "right"
    for trial in trials:
        gained = gain(trial, trials[0])
        table.add_row(
            Text(trial.name, style="bold" if trial is kept else ""),
            *(f"{trial.metrics[name]:.1f}" for name in METRICS),
            "" if trial is trials[0] else f"{gained.points:+.1f} ± {gained.error:.1f}",
            f"{trial.metrics[FIRST]:.1f}",
            f"{trial.seconds:,.0f}",
        )
    return table


def reasons(trials: Sequence[Trial], *, kept: Trial) -> Iterator[str]:
    """A line for each trial: what was tried, and why it is kept or dropped."""
    for trial in trials:
        yield f"{trial.name}: {trial.summary}; {reason(trial, trials, kept)}"


def reason(trial: Trial, trials: Sequence[Trial], kept: Trial) -> str:
    """Why a trial is kept or dropped, in a few words."""
    first = trials[0]
    if trial is kept:
        return "kept"
    if trial is first:
        return f"{kept.name} is better"
    if trial.metrics["P@1"] < first.metrics["P@1"]:
        return f"P@1 is below {first.name}'s"
    if not keeps_known(trial, trials):
        return f"known queries are answered worse than by {first.name}"
    if not gain(trial, first).counts:
        return "gains less than its error"
    if trials.index(trial) > trials.index(kept):
        return f"over {kept.name} within its error"
    return f"{kept.name} is better"


def verdict(trials: Sequence[Trial], kept: Trial) -> str:
    """Say in a sentence what is kept, and why."""
    first = trials[0]
    if kept is first:
        if len(trials) == 1:
            return f"{kept.name} is kept: nothing else was tried"
        return f"{kept.name} is kept: no training gained more than its standard error"
    gained = gain(kept, first)
    return (
        f"{kept.name} is kept: it gains {gained.points:.1f} ± {gained.error:.1f} points over the"
        f" {first.name} encoder, as the mean of {', '.join(METRICS)}"
    )


def as_facts(trials: Sequence[Trial], *, kept: Trial) -> list[dict[str, object]]:
    """The trials for run.json."""
    return [
        {
            "name": trial.name,
            "summary": trial.summary,
            "metrics": {name: trial.metrics[name] for name in (*METRICS, FIRST, IN_TEN)},
            "gain": gain(trial, trials[0]).points,
            "standard_error": gain(trial, trials[0]).error,
            "why": reason(trial, trials, kept),
            "seconds": trial.seconds,
            "step": trial.step,
            "mixing": trial.mixing,
        }
        for trial in trials
    ]


SCALES: tuple[Relevance, ...] = ("given", "log", "binary")  # the first is the scale of the data


def weight_trials(
    held_out: Sequence[HeldOutRetrieval], measured: Sequence[Measured]
) -> list[Trial]:
    """A trial for each scale on the held-out rows of each split; none if all weights are equal.

    `measured` are the same rows with the given weights; their choices are used for all scales.
    """
    if all(vote_weights(split.memory.labels_of) is None for split in held_out):
        return []
    return [
        joined(
            [
                measure(_scaled(split, scale), given.choices)
                for split, given in zip(held_out, measured, strict=True)
            ],
            name=scale,
            summary="",
            folder=Path(),
            seconds=0.0,
        )
        for scale in SCALES
    ]


def weight_lines(trials: Sequence[Trial]) -> Iterator[str]:
    """What each scale reached, and which one is kept if it is not the data's own."""
    if not trials:
        return
    means = ", ".join(f"{trial.name} {trial.score:.1f}" for trial in trials)
    yield f"weights of the memory's votes, mean on the held-out rows: {means}"
    best = best_of(trials)
    if best is not trials[0]:
        gained = gain(best, trials[0])
        yield (
            f"{best.name} gains {gained.points:.1f} ± {gained.error:.1f} points over the weights"
            f" as given: the memory of what is kept votes with relevance {best.name}"
            " (`export bundle --relevance given` overrules it)"
        )


def best_relevance(trials: Sequence[Trial]) -> Relevance | None:
    """The scale to keep; None if nothing was compared because all weights are equal."""
    if not trials:
        return None
    best = best_of(trials)
    return next(scale for scale in SCALES if scale == best.name)


def chosen_with(scale: Relevance, held_out: HeldOutRetrieval, given: Measured) -> Measured:
    """Measure a split's held-out rows on a scale, with tau, lambda and b chosen for it.

    `given` are the same rows measured with the given weights.
    """
    if scale == "given":
        return replace(given, choices=replace(given.choices, relevance=scale))
    scaled = _scaled(held_out, scale)
    start = replace(UNCHOSEN, relevance=scale)
    return measure(scaled, choose_on(scaled, start, metrics=METRICS, words=WORDS, hubs=HUBS))


def _scaled(held_out: HeldOutRetrieval, scale: Relevance) -> HeldOutRetrieval:
    labels_of = relevance(held_out.memory.labels_of, scale=scale)
    return replace(held_out, memory=replace(held_out.memory, labels_of=labels_of))

"""The table that `fit` prints: a row for each trial with its quality, the kept trial marked."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from training.fitting.trial import METRICS, Trial, gain


def table_of(trials: Sequence[Trial], *, kept: Trial) -> Table:
    """A row for each trial, with its gain over the untrained encoder and its standard error."""
    table = Table(
        "tried", "what", *METRICS, "mean gained", "seconds", "why", title="on the held-out rows",
        title_justify="left",
    )  # fmt: skip
    for column in table.columns[2:-1]:
        column.justify = "right"
    for trial in trials:
        gained = gain(trial, trials[0])
        table.add_row(
            Text(trial.name, style="bold" if trial is kept else ""),
            Text(trial.summary),
            *(f"{trial.metrics[name]:.1f}" for name in METRICS),
            "" if trial is trials[0] else f"{gained.points:+.1f} ± {gained.error:.1f}",
            f"{trial.seconds:,.0f}",
            reason(trial, trials, kept),
        )
    return table


def reason(trial: Trial, trials: Sequence[Trial], kept: Trial) -> str:
    """Why a trial is kept or dropped, in a few words."""
    first = trials[0]
    if trial is kept:
        return "kept"
    if trial is first:
        return f"{kept.name} is better"
    if trial.metrics["P@1"] < first.metrics["P@1"]:
        return f"P@1 is below {first.name}'s"
    if not gain(trial, first).counts:
        return "gains less than its error"
    if trials.index(trial) > trials.index(kept):
        return f"over {kept.name} within its error"
    return f"{kept.name} is better"


def verdict(trials: Sequence[Trial], kept: Trial) -> str:
    """What is kept and why, in a sentence."""
    first = trials[0]
    if kept is first:
        if len(trials) == 1:
            return f"{kept.name} is kept: nothing else was tried"
        return f"{kept.name} is kept: no training gained more than its standard error"
    gained = gain(kept, first)
    return (
        f"{kept.name} is kept: it gains {gained.points:.1f} ± {gained.error:.1f} points over the"
        f" untrained encoder, as the mean of {', '.join(METRICS)}"
    )


def as_facts(trials: Sequence[Trial], *, kept: Trial) -> list[dict[str, object]]:
    """The trials for run.json."""
    return [
        {
            "name": trial.name,
            "summary": trial.summary,
            "metrics": {name: trial.metrics[name] for name in METRICS},
            "gain": gain(trial, trials[0]).points,
            "standard_error": gain(trial, trials[0]).error,
            "why": reason(trial, trials, kept),
            "seconds": trial.seconds,
            "step": trial.step,
            "mixing": trial.mixing,
        }
        for trial in trials
    ]

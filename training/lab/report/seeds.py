"""Runs trained with several seeds: means and standard deviations of their figures.

The results of other seeds lie in the run's folder, see `training.evaluation.seeds`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from training.evaluation.seeds import FIRST_SEED, folders_by_seed
from training.lab.report.runs import Run, read_run
from training.lab.report.tables import RUN_METRICS, Table, percent

SEVERAL = "Several seeds, each with held-out rows of its own: means and standard deviations."
Figure = Callable[[Run], float | None]


@dataclass(frozen=True, kw_only=True, eq=False)
class SeededRun:
    """A run and its results by seed."""

    run: Run
    by_seed: Mapping[int, Run]

    def figures(self, figure: Figure) -> dict[int, float]:
        """Return a figure by seed, without the seeds that lack it."""
        found = {seed: figure(run) for seed, run in self.by_seed.items()}
        return {seed: value for seed, value in found.items() if value is not None}


def spread(values: Sequence[float]) -> str:
    """Format the mean and sample standard deviation of several values; "" for a single one."""
    if len(values) < 2:
        return ""
    return f"{percent(float(np.mean(values)))} ± {percent(float(np.std(values, ddof=1)))}"


def with_memory(metric: str) -> Figure:
    """Return a function that reads a metric at the chosen settings."""
    return lambda run: run.chosen.metrics.get(metric)


def labels_alone(run: Run) -> float | None:
    """Read P@1 at lambda 0."""
    return run.alone("P@1")


COLUMNS: Mapping[str, Figure] = {
    "P@1, labels alone": labels_alone,
    **{metric: with_memory(metric) for metric in RUN_METRICS},
}


def seeded(runs: Sequence[Run]) -> list[SeededRun]:
    """Read the other seeds of the runs that have several; raises `InvalidData` as `read_run`."""
    found = []
    for run in runs:
        others = {
            seed: read_run(folder)
            for seed, folder in folders_by_seed(run.folder).items()
            if seed != FIRST_SEED
        }
        if others:
            found.append(SeededRun(run=run, by_seed={FIRST_SEED: run, **others}))
    return found


def seed_table(runs: Sequence[Run]) -> Table:
    """Show mean and deviation of every column for each run with several seeds."""
    return Table(
        headings=("run", "seeds", *COLUMNS),
        rows=[
            [
                one.run.name,
                str(len(one.by_seed)),
                *(spread(list(one.figures(figure).values())) for figure in COLUMNS.values()),
            ]
            for one in seeded(runs)
        ],
        texts=1,
    )


def seed_lines(runs: Sequence[Run]) -> Iterator[str]:
    """Yield the table as Markdown, nothing if no run has several seeds."""
    table = seed_table(runs)
    if table.rows:
        yield f"{SEVERAL}\n"
        yield from table.markdown()

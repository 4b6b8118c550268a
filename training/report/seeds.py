"""Runs that were trained with several seeds: means and standard deviations of their figures.

The results of the other seeds lie in the run's folder, see `training.evaluation.seeds`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from training.evaluation.seeds import FIRST_SEED, folders_by_seed
from training.report.markdown import markdown_table
from training.report.run_table import METRICS
from training.report.runs import Run, read_run
from training.report.tables import Cell, Row, Table, percent

SEVERAL = "Several seeds, each with held-out rows of its own: means and standard deviations."
Figure = Callable[[Run], float | None]


@dataclass(frozen=True, kw_only=True, eq=False)
class SeededRun:
    """A run and its results with other seeds, by seed."""

    run: Run
    by_seed: Mapping[int, Run]

    def figures(self, figure: Figure) -> dict[int, float]:
        """A figure with each seed; without those that have none."""
        found = {seed: figure(run) for seed, run in self.by_seed.items()}
        return {seed: value for seed, value in found.items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Mean, sample standard deviation and number of values."""

    mean: float
    deviation: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """The spread of two values or more."""
        return cls(
            mean=float(np.mean(values)),
            deviation=float(np.std(values, ddof=1)),
            count=len(values),
        )

    def __str__(self) -> str:
        """As all tables show it."""
        return f"{percent(self.mean)} ± {percent(self.deviation)}"

    @property
    def signed(self) -> str:
        """As tables show a difference."""
        return f"{self.mean:+.2f} ± {percent(self.deviation)}"


def with_memory(metric: str) -> Figure:
    """A metric at the chosen settings."""
    return lambda run: run.chosen.metrics.get(metric)


def labels_alone(metric: str) -> Figure:
    """A metric at lambda 0; None for a run that was not scored there."""
    return lambda run: None if run.labels_alone is None else run.labels_alone.metrics[metric]


COLUMNS: Mapping[str, Figure] = {
    "P@1, labels alone": labels_alone("P@1"),
    **{metric: with_memory(metric) for metric in METRICS},
}


def seeded(runs: Sequence[Run]) -> list[SeededRun]:
    """The runs that have results with two seeds or more; raises `InvalidData` as `read_run`."""
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


def seed_rows(runs: Sequence[Run]) -> Iterator[list[str]]:
    """Each run with its number of seeds and the spread of every column."""
    for one in seeded(runs):
        columns = [list(one.figures(figure).values()) for figure in COLUMNS.values()]
        shown = [str(Spread.of(values)) if len(values) > 1 else "" for values in columns]
        yield [one.run.name, str(len(one.by_seed)), *shown]


def seed_lines(runs: Sequence[Run]) -> Iterator[str]:
    """Lines of a Markdown table of them, none where no run has several seeds."""
    rows = list(seed_rows(runs))
    if rows:
        yield f"{SEVERAL}\n"
        yield from markdown_table(("run", "seeds", *COLUMNS), rows, texts=1)
        yield ""


def difference(one: SeededRun, other: SeededRun, figure: Figure) -> Spread | None:
    """The spread of a figure's differences over the seeds that both have; None below two."""
    ours, theirs = one.figures(figure), other.figures(figure)
    values = [ours[seed] - theirs[seed] for seed in ours if seed in theirs]
    return Spread.of(values) if len(values) > 1 else None


def seed_table(runs: Sequence[Run]) -> Table:
    """The same for the report's page."""
    return Table(
        headings=tuple(COLUMNS),
        rows=tuple(
            Row(name=name, way=f"{count} seeds", cells=tuple(Cell(text=text) for text in cells))
            for name, count, *cells in seed_rows(runs)
        ),
    )

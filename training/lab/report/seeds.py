"""Runs trained with several seeds: means and standard deviations of their figures.

The results of other seeds lie in the run's folder, see `training.evaluation.seeds`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from training.evaluation.seeds import FIRST_SEED, folders_by_seed
from training.lab.report.runs import Run, read_run
from training.lab.report.tables import RUN_METRICS, Table, percent

SEVERAL = "Several seeds, each with held-out rows of its own: means and standard deviations."


def spread(values: Sequence[float]) -> str:
    """Format the mean and sample standard deviation of several values; "" for a single one."""
    if len(values) < 2:
        return ""
    return f"{percent(float(np.mean(values)))} ± {percent(float(np.std(values, ddof=1)))}"


def by_seed(run: Run) -> list[Run]:
    """Return a run and its other seeds; raises `InvalidData` as `read_run`."""
    folders = folders_by_seed(run.folder).items()
    return [run, *(read_run(folder) for seed, folder in folders if seed != FIRST_SEED)]


def seed_table(runs: Sequence[Run]) -> Table:
    """Show mean and deviation of every column for each run with several seeds."""
    rows = []
    for seeds in map(by_seed, runs):
        if len(seeds) > 1:
            columns = [[one.alone("P@1") for one in seeds]]
            columns += [[one.chosen.metrics.get(metric) for one in seeds] for metric in RUN_METRICS]
            known = [[value for value in column if value is not None] for column in columns]
            rows.append([seeds[0].name, str(len(seeds)), *map(spread, known)])
    headings = ("run", "seeds", "P@1, labels alone", *RUN_METRICS)
    return Table(headings=headings, rows=rows, texts=1)


def seed_lines(runs: Sequence[Run]) -> Iterator[str]:
    """Yield the table as Markdown, nothing if no run has several seeds."""
    table = seed_table(runs)
    if table.rows:
        yield f"{SEVERAL}\n"
        yield from table.markdown()

"""Tables of runs: figures in percent, as Markdown or for the report's page.

n is the number of test rows with an unfiltered label.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from rich.table import Table as ConsoleTable

from training.evaluation.metrics import SEGMENTS
from training.evaluation.results import PER_ROW, RERANKED, Result
from training.evaluation.seeds import FIRST_SEED, folders_by_seed
from training.lab.replay import Bucket
from training.lab.report.runs import Run, read_run

METRICS = ("P@1", "P@3", "P@5", "nDCG@5", "PSP@1", "PSP@5", "R@10", "R@100", "coverage@5")
RUN_METRICS = ("P@1", "P@5", "R@100", "PSP@5")
SEVERAL = "Several seeds, each with held-out rows of its own: means and standard deviations."
Value = float | None


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows of cells: `texts` columns of text, then figures; the best figures are `**bold**`."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    texts: int

    def markdown(self) -> Iterator[str]:
        """Yield the table's lines and an empty one."""
        yield f"| {' | '.join(self.headings)} |"
        yield f"|{'---|' * self.texts}{'---:|' * (len(self.headings) - self.texts)}"
        for row in self.rows:
            yield f"| {' | '.join(row)} |"
        yield ""

    def console(self, title: str) -> ConsoleTable:
        """Return the table for a terminal, narrow enough for a small one."""
        table = ConsoleTable(title=title, title_justify="left", box=None, padding=(0, 1, 0, 0))
        for place, heading in enumerate(self.headings):
            justify: Literal["left", "right"] = "left" if place < self.texts else "right"
            table.add_column(heading, justify=justify, no_wrap=True)
        for row in self.rows:
            table.add_row(*row)
        return table


@dataclass(frozen=True, kw_only=True)
class Part:
    """A titled part of a page: words, then optionally a table or a picture (PNG)."""

    title: str
    words: str
    table: Table | None = None
    picture: bytes | None = None


def run_table(runs: Sequence[Run]) -> Table:
    """Compare the runs at their chosen settings, by ascending P@1."""
    ordered = sorted(runs, key=lambda run: (run.chosen.metrics["P@1"], run.name))
    figures = [_column([run.chosen.metrics[name] for run in ordered]) for name in RUN_METRICS]
    settings = ("lambda", "b", "tau")
    return Table(
        headings=("run", "system", "P@1, labels alone", *settings, *RUN_METRICS, "trained in"),
        rows=[
            [
                run.name,
                run.results.system,
                percent(run.alone("P@1")),
                *map(_number, (run.chosen.memorization, run.chosen.depth, run.chosen.tau)),
                *cells,
                _shown(run.results.training_seconds, duration),
            ]
            for run, cells in zip(ordered, zip(*figures, strict=True), strict=True)
        ],
        texts=2,
    )


def metrics(runs: Sequence[Run]) -> Table:
    """Show all metrics (Table 1) of each run as chosen and at lambda 0, and of peers' methods."""
    lines = [(run, way, one) for run in runs for way, one in _ways(run)]
    columns = [_column([one.metrics.get(name) for _, _, one in lines]) for name in METRICS]
    seconds = [run.results.training_seconds for run, _, _ in lines]
    columns.append(_column(seconds, shown=duration, best=min))
    return _of_ways(lines, (*METRICS, "training time"), columns)


def segments(runs: Sequence[Run]) -> Table:
    """Show F1@5 by label frequency (Table 2), at the chosen lambda and at 0 and 1."""
    lines = [(run, way, one) for run in runs for way, one in _segment_ways(run) if any(_known(one))]
    columns = [_column([one.segments.get(name) for _, _, one in lines]) for name in SEGMENTS]
    return _of_ways(lines, tuple(SEGMENTS), columns)


def sweep(parameter: str, swept: Mapping[str, Mapping[Any, Result]]) -> Table:
    """Show P@1, P@5 and R@100 by lambda (Table 8) or b (Figure 3), for runs with several values."""
    swept = {name: by_value for name, by_value in swept.items() if len(by_value) > 1}
    values = sorted({value for by_value in swept.values() for value in by_value})
    return Table(
        headings=("run", "metric", *(f"{parameter} {value:g}" for value in values)),
        rows=[
            [name, metric, *_column([_figure(by_value.get(value), metric) for value in values])]
            for name, by_value in swept.items()
            for metric in PER_ROW
        ],
        texts=2,
    )


def predictions(runs: Sequence[Run]) -> Table:
    """Compare separate and joint prediction at the same lambda (Table 4)."""
    rows = []
    for run in runs:
        joint = run.by_memorization
        for memorization, apart in run.separate.items():
            if memorization in joint:
                sides = (apart.metrics, joint[memorization].metrics)
                pairs = [_column([side[name] for side in sides]) for name in PER_ROW]
                cells = [pair[side] for side in (0, 1) for pair in pairs]
                rows.append([run.name, f"λ {memorization:g}", *cells])
    searches = ("two searches", "one search")
    headings = [f"{search}: {name}" for search in searches for name in PER_ROW]
    return Table(headings=("run", "prediction", *headings), rows=rows, texts=2)


def bucket_table(what: str, buckets: Sequence[Bucket]) -> Table:
    """Show the recall of novel labels in each bucket, by the bucket's start."""
    metrics = list(buckets[0].recall) if buckets else []
    rows = [
        [f"{one.first:,}", f"{one.asked:,}", *map(percent, one.recall.values())] for one in buckets
    ]
    return Table(headings=(f"{what}, at least", "expected", *metrics), rows=rows, texts=1)


def devices(runs: Sequence[Run]) -> str:
    """Name the processors, and the runs that were trained on each of them."""
    names: dict[str, list[str]] = {}
    for run in runs:
        if run.results.training_seconds is not None:
            device = str(run.results.hardware.get("device", "an unknown processor"))
            names.setdefault(device, []).append(run.name)
    return "; ".join(f"{device}: {', '.join(trained)}" for device, trained in names.items())


def percent(value: Value) -> str:
    """Format a figure with two decimals, as in all tables; None is an empty cell."""
    return "" if value is None else f"{value:.2f}"


def duration(seconds: float) -> str:
    """Format a time in seconds, minutes or hours."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.1f} min"
    return f"{seconds / 3600:.1f} h"


def way_of(run: Run, one: Result) -> str:
    """Describe a result's prediction method."""
    if one.memorization is None:
        return one.method
    if one.memorization == 0.0:
        return f"{run.labels_are}, λ 0"
    method = "instances only" if one.memorization == 1.0 else "memory"
    method = RERANKED if one.method == RERANKED else method
    return f"{method}, λ {one.memorization:g}, b {one.depth}"


def _of_ways(
    lines: Sequence[tuple[Run, str, Result]],
    headings: Sequence[str],
    columns: Sequence[Sequence[str]],
) -> Table:
    """A table with a row per method; a dot marks the chosen one."""
    return Table(
        headings=("run", "prediction", *headings),
        rows=[
            [run.name, f"{way} ●" if one is run.chosen else way, *cells]
            for (run, way, one), cells in zip(lines, zip(*columns, strict=True), strict=True)
        ],
        texts=2,
    )


def _ways(run: Run) -> Iterator[tuple[str, Result]]:
    yield way_of(run, run.chosen), run.chosen
    plain = run.labels_alone
    if plain is not None and run.chosen.memorization != 0.0:
        yield way_of(run, plain), plain
    yield from ((one.method, one) for one in run.others)


def _segment_ways(run: Run) -> Iterator[tuple[str, Result]]:
    yield from _ways(run)
    instances = run.by_memorization.get(1.0)
    if instances is not None and run.chosen.memorization != 1.0:
        yield way_of(run, instances), instances


def _known(one: Result) -> list[bool]:
    return [value is not None and not math.isnan(value) for value in one.segments.values()]


def _figure(one: Result | None, metric: str) -> Value:
    return None if one is None else one.metrics[metric]


def _number(value: Value) -> str:
    return "" if value is None else f"{value:g}"


def _shown(value: Value, shown: Callable[[float], str]) -> str:
    return "" if value is None or math.isnan(value) else shown(value)


def _column(
    values: Sequence[Value],
    *,
    shown: Callable[[float], str] = percent,
    best: Callable[[Sequence[float]], float] = max,
) -> list[str]:
    """Format values; the best ones are bold unless all are equal. None and nan are empty cells."""
    known = [value for value in values if value is not None and not math.isnan(value)]
    marked = shown(best(known)) if len(set(map(shown, known))) > 1 else None
    texts = [_shown(value, shown) for value in values]
    return [f"**{text}**" if text and text == marked else text for text in texts]


# Several seeds, and paired t-tests


def spread(values: Sequence[float]) -> str:
    """Format the mean and sample standard deviation of several values; "" for a single one."""
    if len(values) < 2:
        return ""
    return f"{percent(float(np.mean(values)))} ± {percent(float(np.std(values, ddof=1)))}"


def by_seed(run: Run) -> list[Run]:
    """Return a run and its other seeds (`training.evaluation.seeds`); raises as `read_run`."""
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


def paired_p(left: NDArray[np.float64], right: NDArray[np.float64]) -> float | None:
    """Return the two-sided p-value of Student's paired t-test (RAE-XMC, B.3) over [n] and [n].

    t = mean(d) / (sd(d) / sqrt(n)) with n - 1 degrees of freedom. None if there is no test: with
    fewer than two rows, or if all differences are equal, as for identical rankings.
    """
    from scipy.stats import t as student  # slow to import, and the other tables need none

    differences = left - right
    n = len(differences)
    if n < 2 or np.ptp(differences) == 0.0:
        return None
    t = differences.mean() / (differences.std(ddof=1) / math.sqrt(n))
    return float(2.0 * student.sf(abs(t), n - 1))


def p_value(p: float | None) -> str:
    """Format a p-value as in Table 9; "none" if nothing varies."""
    if p is None:
        return "none"
    if p < 1e-300:  # a double cannot tell it from 0
        return "≈ 0"
    if p < 1e-4:
        return f"{p:.1e}"
    return f"{p:.2f}" if p >= 0.01 else f"{p:.4f}"


def comparisons(runs: Sequence[Run]) -> Table:
    """Test the best run by P@1 against each other run; `read_runs` checked that rows are equal."""
    leader, rows = max(runs, key=lambda run: run.chosen.metrics["P@1"]), []
    for other in runs:
        if other is not leader:
            cells = []
            for left, right in zip(leader.rows.T, other.rows.T, strict=True):
                points = 100.0 * (left.mean() - right.mean())
                cells += [f"{points:+.2f}", p_value(paired_p(left, right))]
            rows.append([other.name, way_of(other, other.chosen), *cells])
    tests = [f"{metric}: {what}" for metric in PER_ROW for what in ("points", "p")]
    return Table(headings=(f"{leader.name} against", "prediction", *tests), rows=rows, texts=2)

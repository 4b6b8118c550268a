"""The report's tables for a data set: cells with figures in percent, the best ones marked."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from training.evaluation.metrics import SEGMENTS
from training.evaluation.results import PER_ROW, RERANKED, Result
from training.report.runs import Run

METRICS = ("P@1", "P@3", "P@5", "nDCG@5", "PSP@1", "PSP@5", "R@10", "R@100", "coverage@5")
SWEPT = ("P@1", "P@5")  # Table 8
Value = float | None
Way = tuple[str, Result]  # the prediction method in words, and its result


@dataclass(frozen=True, kw_only=True)
class Cell:
    """`best`: the best of its column, row or pair; `chosen`: chosen on held-out rows."""

    text: str
    best: bool = False
    chosen: bool = False


@dataclass(frozen=True, kw_only=True)
class Row:
    """A run's name, its prediction method, and its figures."""

    name: str
    way: str
    cells: tuple[Cell, ...]
    chosen: bool = False


@dataclass(frozen=True, kw_only=True)
class Table:
    """`groups` are texts above the headings, each with the number of columns it spans."""

    headings: tuple[str, ...]
    rows: tuple[Row, ...]
    groups: tuple[tuple[str, int], ...] = ()


def metrics(runs: Sequence[Run]) -> Table:
    """Table 1: each run at its chosen lambda and as a dual encoder; peers with their methods."""
    lines = [(run, way, one) for run in runs for way, one in _ways(run)]
    columns = [_column([one.metrics.get(name) for _, _, one in lines]) for name in METRICS]
    seconds = [run.results.training_seconds for run, _, _ in lines]
    columns.append(_column(seconds, shown=duration, best=min))
    return Table(
        headings=(*METRICS, "training time"),
        rows=tuple(
            Row(name=run.name, way=way, cells=cells, chosen=one is run.chosen)
            for (run, way, one), cells in zip(lines, zip(*columns, strict=True), strict=True)
        ),
    )


def memorizations(runs: Sequence[Run]) -> Table:
    """Table 8: P@1 and P@5 by lambda; the best of each row is marked."""
    swept = [(run, run.by_memorization) for run in runs if len(run.by_memorization) > 1]
    values = sorted({value for _, by_memorization in swept for value in by_memorization})
    rows = []
    for run, by_memorization in swept:
        of_metric = [
            _column([_figure(by_memorization.get(value), name) for value in values])
            for name in SWEPT
        ]
        cells = tuple(
            Cell(text=cell.text, best=cell.best, chosen=value == run.chosen.memorization)
            for value, pair in zip(values, zip(*of_metric, strict=True), strict=True)
            for cell in pair
        )
        rows.append(Row(name=run.name, way=f"b {run.chosen.depth}", cells=cells))
    return Table(
        groups=tuple((f"λ {value:g}", len(SWEPT)) for value in values),
        headings=SWEPT * len(values),
        rows=tuple(rows),
    )


def segments(runs: Sequence[Run]) -> Table:
    """Table 2: F1@5 by label frequency, at the chosen lambda and at 0 and 1."""
    lines = [(run, way, one) for run in runs for way, one in _segment_ways(run) if any(_known(one))]
    columns = [_column([one.segments.get(name) for _, _, one in lines]) for name in SEGMENTS]
    return Table(
        headings=tuple(SEGMENTS),
        rows=tuple(
            Row(name=run.name, way=way, cells=cells, chosen=one is run.chosen)
            for (run, way, one), cells in zip(lines, zip(*columns, strict=True), strict=True)
        ),
    )


def predictions(runs: Sequence[Run]) -> Table:
    """Table 4: separate and joint prediction at the same lambda; the better one is marked."""
    rows = []
    for run in runs:
        joint = run.by_memorization
        for memorization, apart in run.separate.items():
            if memorization not in joint:
                continue
            pairs = [
                _column([apart.metrics[name], joint[memorization].metrics[name]])
                for name in PER_ROW
            ]
            cells = tuple(pair[side] for side in (0, 1) for pair in pairs)
            rows.append(Row(name=run.name, way=f"λ {memorization:g}", cells=cells))
    return Table(
        groups=(("separate (Eq. 11)", len(PER_ROW)), ("joint (Eq. 7)", len(PER_ROW))),
        headings=PER_ROW * 2,
        rows=tuple(rows),
    )


def percent(value: float) -> str:
    """A figure with two decimals, as in all tables."""
    return f"{value:.2f}"


def duration(seconds: float) -> str:
    """A time in seconds, minutes or hours."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.1f} min"
    return f"{seconds / 3600:.1f} h"


def _ways(run: Run) -> Iterator[Way]:
    yield way_of(run, run.chosen), run.chosen
    plain = run.labels_alone
    if plain is not None and run.chosen.memorization != 0.0:
        yield way_of(run, plain), plain
    yield from ((one.method, one) for one in run.others)


def _segment_ways(run: Run) -> Iterator[Way]:
    yield from _ways(run)
    instances = run.by_memorization.get(1.0)
    if instances is not None and run.chosen.memorization != 1.0:
        yield way_of(run, instances), instances


def way_of(run: Run, one: Result) -> str:
    """A result's prediction method, in words."""
    if one.memorization is None:
        return one.method
    if one.memorization == 0.0:
        return f"{run.labels_are}, λ 0"
    method = "instances only" if one.memorization == 1.0 else "memory"
    method = RERANKED if one.method == RERANKED else method
    return f"{method}, λ {one.memorization:g}, b {one.depth}"


def _known(one: Result) -> list[bool]:
    return [value is not None and not math.isnan(value) for value in one.segments.values()]


def _figure(one: Result | None, metric: str) -> Value:
    return None if one is None else one.metrics[metric]


def _column(
    values: Sequence[Value],
    *,
    shown: Callable[[float], str] = percent,
    best: Callable[[Sequence[float]], float] = max,
) -> tuple[Cell, ...]:
    """Cells of a column; the best figure and its equals are marked, if there is a difference.

    An unknown figure (None or nan) is an empty cell.
    """
    known = [value for value in values if value is not None and not math.isnan(value)]
    marked = shown(best(known)) if len(set(map(shown, known))) > 1 else None
    texts = ["" if value is None or math.isnan(value) else shown(value) for value in values]
    return tuple(Cell(text=text, best=bool(text) and text == marked) for text in texts)

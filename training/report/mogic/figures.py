"""Figures of a run as MOGIC's tables show them, and how far one run is above another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from training.evaluation.results import PER_ROW
from training.report.markdown import markdown_table
from training.report.runs import Run
from training.report.seeds import SeededRun, difference, labels_alone, with_memory
from training.report.significance import p_value, paired_p
from training.report.tables import percent

METRICS = ("P@1", "P@5", "nDCG@5", "PSP@1", "PSP@5")  # the paper's, in its order
LABELS_ALONE = "P@1, labels alone"

Row = list[str]


def table(
    headings: Sequence[str], rows: Sequence[Row], *, more: Sequence[str] = ()
) -> Iterator[str]:
    """Lines of a table: texts under `headings`, then the metrics, then texts under `more`."""
    columns = (*headings, *METRICS, LABELS_ALONE, *more)
    yield from markdown_table(columns, rows, texts=len(headings))
    yield ""


def figures(run: Run) -> Row:
    """The metrics at the chosen settings, and P@1 of the labels' keys alone."""
    alone = run.labels_alone
    cells = [percent(run.chosen.metrics[metric]) for metric in METRICS]
    return [*cells, "" if alone is None else percent(alone.metrics["P@1"])]


def gains(run: Run, other: Run) -> Row:
    """How far a run is above another one by each figure; p where single rows are known."""
    cells = [gain(run, other, metric) for metric in METRICS]
    ours, theirs = run.labels_alone, other.labels_alone
    if ours is None or theirs is None:
        return [*cells, ""]
    return [*cells, f"{ours.metrics['P@1'] - theirs.metrics['P@1']:+.2f}"]


def gains_by_seed(run: SeededRun, other: SeededRun) -> Row:
    """The same over all seeds that both have: mean and standard deviation of the differences."""
    columns = (*map(with_memory, METRICS), labels_alone("P@1"))
    spreads = [difference(run, other, figure) for figure in columns]
    return ["" if spread is None else spread.signed for spread in spreads]


def gain(run: Run, other: Run, metric: str = "P@1") -> str:
    """Such as "+0.43 (p 0.02)", p being that of the paired t-test over the test rows."""
    difference = run.chosen.metrics[metric] - other.chosen.metrics[metric]
    if metric not in PER_ROW:
        return f"{difference:+.2f}"
    column = PER_ROW.index(metric)
    p = paired_p(run.rows[:, column], other.rows[:, column])
    return f"{difference:+.2f} (p {p_value(p)})"

"""MOGIC's Tables 6, 8 and 9 from what `robustness` measured: mean and deviation of the draws."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from training.evaluation.robustness import (
    METRICS,
    NO_ITEMS,
    NOT_READ,
    PREDICTED,
    TRUE,
    Condition,
    Kind,
    Robustness,
    RunRobustness,
)
from training.report.markdown import markdown_table

Row = list[str]
# Kind of condition -> the whole bank's condition, and the items that queries have
BANKS: tuple[tuple[Kind, Condition, str], ...] = (
    ("in a bank of", TRUE, "true"),
    ("predicted in a bank of", PREDICTED, "predicted"),
)
HEADINGS = ("model", "run")
LOST = "change of P@1"


def noise_table(condition: str, rows: Sequence[Row]) -> Iterator[str]:
    """Lines of a table whose rows were made here; `condition` is the heading of what is changed."""
    headings = (*HEADINGS, condition)
    yield from markdown_table((*headings, *METRICS, LOST), rows, texts=len(headings))
    yield ""


def source_rows(document: Robustness) -> list[Row]:
    """Table 6: true metadata, predicted ones, and none."""
    words = {
        TRUE: "true",
        PREDICTED: "predicted",
        NO_ITEMS: "none",
        NOT_READ: "not read",
    }
    return _rows(document.runs, list(words.items()))


def bank_rows(document: Robustness) -> list[Row]:
    """Table 8: the bank cut at random, with the true items of each query and with predicted."""
    shares = _shares(document.runs, "in a bank of")
    rows: list[Row] = []
    for run in _readers(document):
        for kind, whole, items in BANKS:
            cut = [(Condition(metadata=kind, share=share), share) for share in shares[::-1]]
            lines = [(whole, 1.0), *cut]
            rows += _rows([run], [(one, f"{share:.0%}, {items}") for one, share in lines])
    return rows


def noise_rows(document: Robustness, kind: Kind) -> list[Row]:
    """Table 9, and the same with links that are dropped in place of replaced."""
    rows: list[Row] = []
    for run in _readers(document):
        lines = [(TRUE, "0%")]
        for share in _shares(document.runs, kind):
            lines.append((Condition(metadata=kind, share=share), f"{share:.0%}"))
        rows += _rows([run], lines)
    return rows


def _readers(document: Robustness) -> list[RunRobustness]:
    """The runs that read metadata of queries; what others lose is nothing."""
    return [run for run in document.runs if run.reads != "nothing"]


def _shares(runs: Sequence[RunRobustness], kind: Kind) -> list[float]:
    """The shares that were measured of a kind, ascending."""
    conditions = (one.condition for run in runs for one in run.measured)
    return sorted({one.share for one in conditions if one.metadata == kind})


def _rows(runs: Sequence[RunRobustness], conditions: Sequence[tuple[Condition, str]]) -> list[Row]:
    """A row for each run and condition that was measured."""
    rows: list[Row] = []
    for run in runs:
        first = None
        for condition, words in conditions:
            measured = run.under(condition)
            if measured is None:
                continue
            lost = "" if first is None else f"{measured.mean('P@1') - first:+.2f}"
            first = measured.mean("P@1") if first is None else first
            figures = [measured.shown(metric) for metric in METRICS]
            rows.append([run.role, run.run, words, *figures, lost])
    return rows

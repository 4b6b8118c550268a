"""Tables of the loss by missing and wrong metadata, like MOGIC's Tables 6, 8 and 9."""

from __future__ import annotations

from collections.abc import Sequence

from training.lab.report.tables import Part, Table
from training.lab.robustness import (
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

SOURCES = {TRUE: "true", PREDICTED: "predicted", NO_ITEMS: "none", NOT_READ: "not read"}
# Kind of condition -> the condition with the whole bank, and the queries' items in words
BANKS: tuple[tuple[Kind, Condition, str], ...] = (
    ("in a bank of", TRUE, "true"),
    ("predicted in a bank of", PREDICTED, "predicted"),
)


def robustness_parts(document: Robustness) -> list[Part]:
    """The tables of a file of `robustness`, each with the title of the paper's table."""
    return [
        Part(
            title="Table 6",
            words="The source of the metadata; five items are predicted for an oracle.",
            table=_table("metadata", _rows(document.runs, list(SOURCES.items()))),
        ),
        Part(
            title="Table 8",
            words="A bank cut at random: the share of the items that is left.",
            table=_table("bank", bank_rows(document)),
        ),
        Part(
            title="Table 9",
            words="The share of the true links that is replaced by random items.",
            table=_table("replaced", noise_rows(document, "replaced")),
        ),
        Part(
            title="",
            words="The same with links that are dropped.",
            table=_table("dropped", noise_rows(document, "dropped")),
        ),
    ]


def bank_rows(document: Robustness) -> list[list[str]]:
    """Table 8: banks cut at random, with the true items of each query and with predicted ones."""
    shares = _shares(document.runs, "in a bank of")
    rows = []
    for run in _readers(document):
        for kind, whole, items in BANKS:
            cut = [(Condition(metadata=kind, share=share), share) for share in shares[::-1]]
            lines = [(whole, 1.0), *cut]
            rows += _rows([run], [(one, f"{share:.0%}, {items}") for one, share in lines])
    return rows


def noise_rows(document: Robustness, kind: Kind) -> list[list[str]]:
    """Table 9 for replaced links, and a similar table for dropped links."""
    rows = []
    for run in _readers(document):
        changed = [
            (Condition(metadata=kind, share=share), f"{share:.0%}")
            for share in _shares(document.runs, kind)
        ]
        rows += _rows([run], [(TRUE, "0%"), *changed])
    return rows


def _table(condition: str, rows: Sequence[Sequence[str]]) -> Table:
    """A table of figures by condition; `condition` is the heading of the first column."""
    headings = ("model", "run", condition, *METRICS, "change of P@1")
    return Table(headings=headings, rows=rows, texts=3)


def _readers(document: Robustness) -> list[RunRobustness]:
    """The runs that read metadata of queries; the others lose nothing."""
    return [run for run in document.runs if run.reads != "nothing"]


def _shares(runs: Sequence[RunRobustness], kind: Kind) -> list[float]:
    """The measured shares of a kind of condition, ascending."""
    conditions = (one.condition for run in runs for one in run.measured)
    return sorted({one.share for one in conditions if one.metadata == kind})


def _rows(
    runs: Sequence[RunRobustness], conditions: Sequence[tuple[Condition, str]]
) -> list[list[str]]:
    """A row for each run and condition that was measured."""
    rows = []
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

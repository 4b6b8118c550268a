"""Tables of the loss by missing and wrong metadata, like MOGIC's Tables 6, 8 and 9."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

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

Series = list[tuple[Condition, str]]  # conditions in the order of rows, and their names

SOURCES: Series = [
    (TRUE, "true"),
    (PREDICTED, "predicted"),
    (NO_ITEMS, "none"),
    (NOT_READ, "not read"),
]


def robustness_parts(document: Robustness) -> list[Part]:
    """The tables of a file of `robustness`, each with the title of the paper's table."""
    runs = document.runs
    readers = [run for run in runs if run.reads != "nothing"]  # the others lose nothing
    return [
        Part(
            title="Table 6",
            words="The source of the metadata; five items are predicted for an oracle.",
            table=_table("metadata", runs, [SOURCES]),
        ),
        Part(
            title="Table 8",
            words="A bank cut at random: the share of the items that is left.",
            table=_table("bank", readers, list(_banks(runs))),
        ),
        Part(
            title="Table 9",
            words="The share of the true links that is replaced by random items.",
            table=_table("replaced", readers, [_noise(runs, "replaced")]),
        ),
        Part(
            title="",
            words="The same with links that are dropped.",
            table=_table("dropped", readers, [_noise(runs, "dropped")]),
        ),
    ]


def _banks(runs: Sequence[RunRobustness]) -> Iterator[Series]:
    """Yield banks from the largest, with the true items of each query and with predicted ones."""
    kinds: tuple[tuple[Kind, Condition], ...] = (
        ("in a bank of", TRUE),
        ("predicted in a bank of", PREDICTED),
    )
    shares = _shares(runs, "in a bank of")[::-1]
    for kind, whole in kinds:
        cut = [(Condition(metadata=kind, share=share), share) for share in shares]
        yield [(one, f"{share:.0%}, {whole.metadata}") for one, share in ((whole, 1.0), *cut)]


def _noise(runs: Sequence[RunRobustness], kind: Kind) -> Series:
    """True links, then each share of replaced or dropped ones."""
    shares = _shares(runs, kind)
    return [
        (TRUE, "0%"),
        *((Condition(metadata=kind, share=share), f"{share:.0%}") for share in shares),
    ]


def _shares(runs: Sequence[RunRobustness], kind: Kind) -> list[float]:
    """The measured shares of a kind of condition, ascending."""
    conditions = (one.condition for run in runs for one in run.measured)
    return sorted({one.share for one in conditions if one.metadata == kind})


def _table(heading: str, runs: Sequence[RunRobustness], series: Sequence[Series]) -> Table:
    """A table of figures by condition; `heading` is that of the conditions' column."""
    rows = [row for run in runs for one in series for row in _rows(run, one)]
    headings = ("model", "run", heading, *METRICS, "change of P@1")
    return Table(headings=headings, rows=rows, texts=3)


def _rows(run: RunRobustness, series: Series) -> Iterator[list[str]]:
    """Yield a row for each condition that was measured, with its loss against the first one."""
    first = None
    for condition, words in series:
        measured = run.under(condition)
        if measured is None:
            continue
        lost = "" if first is None else f"{measured.mean('P@1') - first:+.2f}"
        first = measured.mean("P@1") if first is None else first
        yield [run.role, run.run, words, *map(measured.shown, METRICS), lost]

"""`python -m training data`: write and describe data sets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import numpy as np
from cyclopts import App, Parameter
from rich.console import Console
from rich.table import Table

from training.commands.data.log import log
from training.datasets import BUILTIN, lf_xmc, load_builtin
from training.datasets.dataset import Dataset, Split
from training.datasets.pairs import from_table
from training.datasets.propensity import label_frequency

app = App(name="data", help="Write data sets, and describe them.")

Out = Annotated[Path, Parameter(help="The folder to write; it must not exist yet.")]


def builtin_command(name: str) -> Callable[..., None]:
    """Return the command that writes a data set of the table `BUILTIN`."""

    def command(*, out: Out) -> None:
        _write(load_builtin(name), out)

    command.__doc__ = BUILTIN[name].summary
    return command


for _name in BUILTIN:
    app.command(builtin_command(_name), name=_name)
app.command(log)


@app.command
def pairs(
    *,
    input: Annotated[
        Path, Parameter(help=".csv, .tsv or .jsonl (each also .gz), or .parquet; tsv has no quotes")
    ],
    query: Annotated[str, Parameter(help="The column that holds queries.")],
    label: Annotated[str, Parameter(help="The column that holds keywords.")],
    out: Out,
    weight: Annotated[
        str | None, Parameter(help="A column of positive numbers, summed for equal pairs.")
    ] = None,
    label_id: Annotated[
        str | None, Parameter(help="A column of keyword ids; without it the text is the id.")
    ] = None,
    test_fraction: Annotated[
        float, Parameter(help="The share of queries that go to the test split.")
    ] = 0.2,
    seed: Annotated[int, Parameter(help="Another seed gives another split.")] = 0,
) -> None:
    """Turn a table of (query, keyword) rows into a data set.

    Equal queries become one row, equal keywords one label. A hash of the text decides whether a
    query goes to train or to test, so rows that are added later move no other query.
    """
    dataset = from_table(
        input,
        query=query,
        label=label,
        weight=weight,
        label_id=label_id,
        test_fraction=test_fraction,
        seed=seed,
        name=out.resolve().name,
    )
    _write(dataset, out)


@app.command
def describe(
    folder: Annotated[Path, Parameter(help="A data set in the LF-XMC layout, either form.")], /
) -> None:
    """Check a data set for mistakes and print its sizes."""
    dataset = lf_xmc.read(folder)
    table = Table("", "train", "test", title=dataset.name, title_justify="left")
    for column in table.columns[1:]:
        column.justify = "right"
    for name, train, test in split_facts(dataset):
        table.add_row(name, train, test)
    console = Console()
    console.print(table)
    for name, value in facts(dataset):
        console.print(f"{name}: {value}", markup=False, highlight=False, soft_wrap=True)


def split_facts(dataset: Dataset) -> Iterator[tuple[str, str, str]]:
    """Yield (name, value for train, value for test)."""
    seen = label_frequency(dataset.train.labels_of) > 0  # [L]

    def row(name: str, count: Callable[[Split], float]) -> tuple[str, str, str]:
        train, test = count(dataset.train), count(dataset.test)
        form = ",.1f" if isinstance(train, float) else ",d"
        return name, format(train, form), format(test, form)

    yield row("rows", len)
    yield row("rows without labels", lambda split: int((_sizes(split) == 0).sum()))
    yield row("pairs", lambda split: int(split.labels_of.nnz))
    yield row("labels per row", lambda split: float(_sizes(split).mean()))
    yield row("most labels of a row", lambda split: int(_sizes(split).max()))
    yield row("labels in use", lambda split: len(np.unique(split.labels_of.indices)))
    yield row("rows per label in use", _rows_per_label)
    yield row(
        "pairs of labels never in train", lambda split: int((~seen[split.labels_of.indices]).sum())
    )
    yield row("filtered pairs", lambda split: int(split.filtered.nnz))
    yield row("filtered pairs that are positives", _filtered_positives)


def facts(dataset: Dataset) -> Iterator[tuple[str, str]]:
    """Yield (name, value) of facts about the whole data set."""
    yield "labels", f"{len(dataset.labels):,}"
    if dataset.metadata is not None:
        yield "metadata items", f"{len(dataset.metadata):,}"
    yield "propensity", f"a {dataset.propensity.a}, b {dataset.propensity.b}"
    yield "text", " + ".join(dataset.fields)
    if dataset.source:
        yield "source", dataset.source


def _sizes(split: Split) -> np.ndarray:
    return np.diff(split.labels_of.indptr)  # [N]


def _rows_per_label(split: Split) -> float:
    return float(split.labels_of.nnz / max(len(np.unique(split.labels_of.indices)), 1))


def _filtered_positives(split: Split) -> int:
    return int((split.labels_of != 0).multiply(split.filtered).nnz)


def _write(dataset: Dataset, out: Path) -> None:
    console = Console()
    with Console(stderr=True).status("writing", spinner="dots"):
        lf_xmc.write(dataset, out)
    summary = (
        f"{out}: {len(dataset.train):,} train and {len(dataset.test):,} test rows, "
        f"{len(dataset.labels):,} labels"
    )
    console.print(summary, markup=False, highlight=False, soft_wrap=True)

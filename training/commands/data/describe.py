"""`python -m training data describe`: checks a data set and prints its sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import numpy as np
from cyclopts import Parameter
from rich.table import Table
from scipy.sparse import csr_matrix

from service.command_line import open_console
from training.datasets import lf_xmc
from training.datasets.dataset import Dataset, Split
from training.datasets.propensity import label_frequency


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
    console = open_console()
    console.print(table)
    for name, value in facts(dataset):
        console.print(f"{name}: {value}", soft_wrap=True)


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
    yield row("labels per row", lambda split: float(_sizes(split).sum() / max(len(split), 1)))
    yield row("most labels of a row", lambda split: int(_sizes(split).max(initial=0)))
    yield row("labels in use", lambda split: len(np.unique(split.labels_of.indices)))
    yield row("rows per label in use", _rows_per_label)
    yield row(
        "pairs of labels never in train", lambda split: int((~seen[split.labels_of.indices]).sum())
    )
    yield row("filtered pairs", lambda split: int(split.filtered.nnz))
    yield row("filtered pairs that are positives", _filtered_positives)
    if dataset.metadata is not None:
        yield row("rows with metadata", lambda split: _with_items(split.metadata_of))
        yield row("metadata items per row", _items_per_row)


def facts(dataset: Dataset) -> Iterator[tuple[str, str]]:
    """Yield (name, value) of facts about the whole data set."""
    yield "labels", f"{len(dataset.labels):,}"
    if dataset.metadata is not None:
        yield "metadata items", f"{len(dataset.metadata):,}"
        yield "labels with metadata", f"{_with_items(dataset.label_metadata):,}"
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


def _with_items(metadata_of: csr_matrix | None) -> int:
    """How many of the texts [N, M] have a metadata item."""
    return 0 if metadata_of is None else int((np.diff(metadata_of.indptr) > 0).sum())


def _items_per_row(split: Split) -> float:
    assert split.metadata_of is not None
    return float(split.metadata_of.nnz / max(len(split), 1))

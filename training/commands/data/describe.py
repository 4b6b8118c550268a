"""`keymatch data describe`: checks a data set and prints its sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import numpy as np
from cyclopts import Parameter
from rich.table import Table
from scipy.sparse import csr_matrix

from service.command_line import open_console
from service.core.text_identity import identity
from training.datasets import lf_xmc
from training.datasets.dataset import Dataset, Split, Texts
from training.datasets.label_fields import field_types
from training.datasets.propensity import label_frequency


def describe(
    data: Annotated[Path, Parameter(help="A data set in the LF-XMC layout, either form.")],
) -> None:
    """Check a data set for mistakes and print its sizes."""
    dataset = lf_xmc.read(data)
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
    texts = [set(map(identity, split.instances.texts)) for split in (dataset.train, dataset.test)]

    def sizes(split: Split) -> np.ndarray:
        return np.diff(split.labels_of.indptr)  # [N]

    def used(split: Split) -> int:
        return len(np.unique(split.labels_of.indices))

    counts: dict[str, Callable[[Split], float]] = {
        "rows": len,
        "rows without labels": lambda split: int((sizes(split) == 0).sum()),
        "rows that repeat a text": lambda split: _repeated(split.instances),
        "texts that are in both splits": lambda split: len(texts[0] & texts[1]),
        "pairs": lambda split: int(split.labels_of.nnz),
        "labels per row": lambda split: float(sizes(split).sum() / max(len(split), 1)),
        "most labels of a row": lambda split: int(sizes(split).max(initial=0)),
        "labels in use": used,
        "rows per label in use": lambda split: split.labels_of.nnz / max(used(split), 1),
        "pairs of labels never in train": lambda split: int((~seen[split.labels_of.indices]).sum()),
        "filtered pairs": lambda split: int(split.filtered.nnz),
        "filtered pairs that are positives": lambda split: int(
            (split.labels_of != 0).multiply(split.filtered).nnz
        ),
    }
    if dataset.metadata is not None:
        counts["rows with metadata"] = lambda split: int((_items(split.metadata_of) > 0).sum())
        counts["metadata items per row"] = lambda split: float(
            _items(split.metadata_of).sum() / max(len(split), 1)
        )
    for name, count in counts.items():
        train, test = count(dataset.train), count(dataset.test)
        form = ",.1f" if isinstance(train, float) else ",d"
        yield name, format(train, form), format(test, form)


def facts(dataset: Dataset) -> Iterator[tuple[str, str]]:
    """Yield (name, value) of facts about the whole data set."""
    yield "labels", f"{len(dataset.labels):,}"
    yield "labels that share the text of an earlier one", f"{_repeated(dataset.labels):,}"
    if dataset.metadata is not None:
        yield "metadata items", f"{len(dataset.metadata):,}"
        yield "labels with metadata", f"{(_items(dataset.label_metadata) > 0).sum():,}"
    if dataset.label_fields is not None:
        yield "label fields", ", ".join(field_types(dataset.label_fields))
    if dataset.label_aliases is not None:
        counts = [len(aliases) for aliases in dataset.label_aliases]
        yield "label aliases", f"{sum(counts):,} of {sum(map(bool, counts)):,} labels"
    yield "propensity", f"a {dataset.propensity.a}, b {dataset.propensity.b}"
    yield "text", " + ".join(dataset.fields)
    if dataset.source:
        yield "source", dataset.source


def _repeated(texts: Texts) -> int:
    """Count texts that equal an earlier one, whatever its case, spaces and Unicode form."""
    return len(texts) - len(set(map(identity, texts.texts)))


def _items(metadata_of: csr_matrix | None) -> np.ndarray:
    """Return the number of metadata items of each text [N]."""
    return np.zeros(0, np.int64) if metadata_of is None else np.diff(metadata_of.indptr)

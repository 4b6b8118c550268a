"""`keymatch data table`: one split of a data set as a table for `predict` and `compare`.

.csv     a row per pair; the other columns of a query without a label are empty
.jsonl   a row per query; the other columns are lists of equal length, one entry per label
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Literal

import orjson

from service.command_line import open_console
from service.core.errors import InvalidInput
from service.core.files.atomic import refuse_unusable, replaced_file
from service.core.tables.separated import csv_writer
from training.datasets import lf_xmc
from training.datasets.dataset import Split, Texts

COLUMNS = ("query", "label_id", "label", "weight")

Row = tuple[str, list[tuple[str, str, float]]]  # a query and its labels: id, text, relevance
Form = Callable[[Iterable[Row]], Iterator[bytes]]


def table(*, data: Path, split: Literal["test", "train"] = "test", out: Path) -> None:
    """Write one split as a table, for `keymatch compare --input` and `keymatch predict --input`.

    Its columns are query, label_id, label and weight. A .csv file has a row per pair, a .jsonl file
    a row per query, with lists. Filtered pairs, which no metric counts, are left out.

    Parameters
    ----------
    data
        The data set's folder.
    split
        The test rows, or the training rows.
    out
        The new file: .csv or .jsonl.
    """
    if out.suffix not in FORMS:  # checked before the data set is read
        raise InvalidInput(f"{out}: unknown ending; the table is written as .csv or .jsonl")
    refuse_unusable(out)
    dataset = lf_xmc.read(data)
    rows = dataset.test if split == "test" else dataset.train
    if not len(rows):
        message = f"data set {dataset.name} has no {split} rows to write"
        raise InvalidInput(f"{message}; `data pairs --test-fraction` above 0 makes test rows")
    with open_console(stderr=True).status("writing", spinner="dots"):
        write_table(rows, dataset.labels, out)
    pairs = rows.labels_of.nnz - rows.labels_of.multiply(rows.filtered).nnz
    open_console().print(
        f"{out}: {len(rows):,} queries, {pairs:,} pairs; columns {', '.join(COLUMNS)}",
        soft_wrap=True,
    )


def write_table(split: Split, labels: Texts, path: Path) -> None:
    """Write a split's queries with their pairs, except for filtered pairs."""
    with replaced_file(path) as file:
        file.writelines(FORMS[path.suffix](_rows(split, labels)))


def _rows(split: Split, labels: Texts) -> Iterator[Row]:
    relevance, filtered = split.labels_of, split.filtered
    for row, query in enumerate(split.instances.texts):
        hidden = set(filtered.indices[filtered.indptr[row] : filtered.indptr[row + 1]].tolist())
        place = slice(relevance.indptr[row], relevance.indptr[row + 1])
        columns, weights = relevance.indices[place].tolist(), relevance.data[place]
        yield (
            query,
            [
                # Format a float32 by its own digits: 0.1 instead of 0.10000000149.
                (labels.uids[column], labels.texts[column], float(str(weight)))
                for column, weight in zip(columns, weights, strict=True)
                if column not in hidden
            ],
        )


def _as_csv(rows: Iterable[Row]) -> Iterator[bytes]:
    lines = io.StringIO()
    writer = csv_writer(lines)
    writer.writerow(COLUMNS)
    for query, clicked in rows:
        rest: list[tuple[object, ...]] = [*clicked] or [("", "", "")]
        writer.writerows((query, *of_label) for of_label in rest)
        yield lines.getvalue().encode()
        lines.seek(0)
        lines.truncate()


def _as_jsonl(rows: Iterable[Row]) -> Iterator[bytes]:
    for query, clicked in rows:
        values = [[label[field] for label in clicked] for field in range(len(COLUMNS) - 1)]
        yield orjson.dumps(dict(zip(COLUMNS, [query, *values], strict=True))) + b"\n"


FORMS: dict[str, Form] = {".csv": _as_csv, ".jsonl": _as_jsonl}

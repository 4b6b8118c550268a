"""One split of a data set as a table that the commands of the service read.

.csv     a row a pair; the other columns of a query without a label are empty
.jsonl   a row a query; the other columns are lists of equal length, one entry a label
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import orjson

from service.core.errors import InvalidInput
from service.core.files.atomic import replaced_file
from training.datasets.dataset import Split, Texts

COLUMNS = ("query", "label_id", "label", "weight")


class Clicked(NamedTuple):
    """A label of a row, with its relevance."""

    id: str
    text: str
    weight: float


Row = tuple[str, list[Clicked]]  # a query and its labels
Form = Callable[[Iterable[Row]], Iterator[bytes]]


def write_table(split: Split, labels: Texts, path: Path) -> None:
    """Write a split's queries with the pairs that count: filtered ones are left out.

    Raises `InvalidInput` for an unknown ending.
    """
    form = form_of(path)
    with replaced_file(path) as file:
        file.writelines(form(_rows(split, labels)))


def form_of(path: Path) -> Form:
    """What turns rows into the bytes of the format that a file's ending names."""
    if path.suffix not in _FORMS:
        raise InvalidInput(f"{path}: unknown ending; the table is written as .csv or .jsonl")
    return _FORMS[path.suffix]


def _rows(split: Split, labels: Texts) -> Iterator[Row]:
    relevance, filtered = split.labels_of, split.filtered
    for row, query in enumerate(split.instances.texts):
        hidden = set(filtered.indices[filtered.indptr[row] : filtered.indptr[row + 1]].tolist())
        place = slice(relevance.indptr[row], relevance.indptr[row + 1])
        columns, weights = relevance.indices[place].tolist(), relevance.data[place]
        yield (
            query,
            [
                # A float32 by its own digits: 0.1, and not 0.10000000149.
                Clicked(labels.uids[column], labels.texts[column], float(str(weight)))
                for column, weight in zip(columns, weights, strict=True)
                if column not in hidden
            ],
        )


def _as_csv(rows: Iterable[Row]) -> Iterator[bytes]:
    lines = io.StringIO()
    writer = csv.writer(lines, lineterminator="\n")
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


_FORMS: dict[str, Form] = {".csv": _as_csv, ".jsonl": _as_jsonl}

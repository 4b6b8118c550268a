"""Tables of (query, keyword) rows in every format, and functions that read them."""

import csv
import gzip
import io
import json
from pathlib import Path
from typing import Any

import pytest

from service.core.files.lines import OnBadRow, stop
from training.datasets import pairs
from training.datasets.dataset import Dataset
from training.datasets.pairs import PairOptions, TableData
from training.datasets.tables.catalogue import NO_CATALOGUE, Catalogue
from training.datasets.tables.rows import Columns

HEADER = ["q", "k", "w", "id"]
ROWS: list[list[Any]] = [
    ["red shoes", "shoes", 1.5, 7],
    ["  red   shoes ", "shoes", 2, 7],
    ["boots", "winter  boots", 0.25, 8],
    ["hat", "boots", 1, 9],
    ["scarf", "hat", 3, 10],
]
FORMATS = ["csv", "tsv", "jsonl", "csv.gz", "tsv.gz", "jsonl.gz", "parquet"]


def write_table(folder: Path, ending: str, rows: list[list[Any]], header: list[str]) -> Path:
    path = folder / f"table.{ending}"
    if ending == "parquet":
        pyarrow = pytest.importorskip("pyarrow", reason="PARQUET NOT READ: no pyarrow")
        from pyarrow import parquet

        columns = {name: [row[i] for row in rows] for i, name in enumerate(header)}
        for name in set(header) & {"w"}:
            columns[name] = [float(value) for value in columns[name]]
        parquet.write_table(pyarrow.table(columns), path)
        return path
    if ending.startswith("jsonl"):
        text = "".join(json.dumps(dict(zip(header, row, strict=True))) + "\n" for row in rows)
    else:
        stream = io.StringIO()
        csv.writer(stream, delimiter="," if ending.startswith("csv") else "\t").writerows(
            [header, *rows]
        )
        text = stream.getvalue()
    content = text.encode()
    path.write_bytes(gzip.compress(content) if ending.endswith("gz") else content)
    return path


def table(
    path: Path,
    *,
    on_bad: OnBadRow = stop,
    catalogue: Catalogue = NO_CATALOGUE,
    **given: Any,
) -> TableData:
    """Call `from_table` with fields of `Columns` and `PairOptions` as arguments."""
    options = {key: value for key, value in given.items() if hasattr(PairOptions, key)}
    names = {key: value for key, value in given.items() if key not in options}
    return pairs.from_table(
        path, Columns(**names), PairOptions(**options), on_bad=on_bad, catalogue=catalogue
    )


def from_table(path: Path, **given: Any) -> Dataset:
    return table(path, **given).dataset


def relevance(dataset: Dataset) -> dict[tuple[str, str], float]:
    found = {}
    for split in (dataset.train, dataset.test):
        entries = split.labels_of.tocoo()
        for row, label, value in zip(entries.row, entries.col, entries.data, strict=True):
            found[split.instances.texts[row], dataset.labels.texts[label]] = float(value)
    return found

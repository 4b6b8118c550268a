"""Rows of a table file, with the line number of each.

    .csv      comma-separated with a header line; fields may be quoted
    .tsv      tab-separated with a header line; no quoting: `"exact phrase"` keeps its quotes
    .jsonl    one JSON object a line
    .parquet  needs pyarrow; a "line" in messages is the row, from 1

All but parquet may be gzip (`.gz`).
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from service.core.errors import InvalidData, MissingExtra
from training.datasets.lines import json_rows, numbered_lines

# A reader yields (line, values of the given columns in their order).
Reader = Callable[[Path, Sequence[str]], Iterator[tuple[int, list[Any]]]]


class Row(NamedTuple):
    """One pair of the table; texts have normal whitespace."""

    line: int
    query: str
    label: str
    weight: float
    label_id: str


def read_rows(
    path: Path, *, query: str, label: str, weight: str | None, label_id: str | None
) -> Iterator[Row]:
    """Yield the rows; the arguments name columns. Without `label_id` a label's id is its text.

    Raises `InvalidData` with file, line and column; `MissingExtra` for parquet without pyarrow.
    """
    columns = [name for name in (query, label, weight, label_id) if name is not None]
    for line, values in _reader(path)(path, columns):
        row = dict(zip(columns, values, strict=True))
        text = _text(row[label], path, line, label)
        yield Row(
            line=line,
            query=_text(row[query], path, line, query),
            label=text,
            weight=1.0 if weight is None else _weight(row[weight], path, line, weight),
            label_id=text if label_id is None else _id(row[label_id], path, line, label_id),
        )


def _reader(path: Path) -> Reader:
    packed = path.suffix == ".gz"
    ending = Path(path.stem).suffix if packed else path.suffix
    if ending not in READERS or (packed and ending == ".parquet"):
        allowed = "a .csv, .tsv or .jsonl file (each may be followed by .gz) or a .parquet file"
        raise InvalidData(path, f"unknown ending; expected {allowed}")
    return READERS[ending]


def _read_csv(path: Path, columns: Sequence[str]) -> Iterator[tuple[int, list[Any]]]:
    # strict: a stray quote is an error; otherwise the rest of the table would become one field.
    lines = (f"{text}\n" for _, text in numbered_lines(path))
    return _read_separated(path, columns, csv.reader(lines, strict=True))


def _read_tsv(path: Path, columns: Sequence[str]) -> Iterator[tuple[int, list[Any]]]:
    lines = (text for _, text in numbered_lines(path))
    reader = csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
    return _read_separated(path, columns, reader)


def _read_separated(
    path: Path, columns: Sequence[str], reader: Any
) -> Iterator[tuple[int, list[Any]]]:
    start = 1  # a quoted field may span lines; messages name the first line of a row
    header: list[str] | None = None
    try:
        for values in reader:
            if header is None:
                header = values
                positions = _positions(header, columns, path)
            elif values and len(values) != len(header):
                message = f"{len(values)} fields, but the header has {len(header)}"
                raise InvalidData(path, message, line=start)
            elif values:  # blank lines are skipped
                yield start, [values[position] for position in positions]
            start = reader.line_num + 1
    except csv.Error as error:
        raise InvalidData(path, f"not a valid row: {error}", line=start) from error


def _read_jsonl(path: Path, columns: Sequence[str]) -> Iterator[tuple[int, list[Any]]]:
    for line, row in json_rows(path):
        for name in columns:
            if name not in row:
                message = f"is missing; the columns are {', '.join(row) or 'none'}"
                raise InvalidData(path, message, line=line, field=name)
        yield line, [row[name] for name in columns]


def _read_parquet(path: Path, columns: Sequence[str]) -> Iterator[tuple[int, list[Any]]]:
    try:
        import pyarrow
        from pyarrow.parquet import ParquetFile
    except ModuleNotFoundError as error:
        raise MissingExtra("pyarrow", extra="training") from error
    line = 0
    try:
        with ParquetFile(path) as table:
            _positions(table.schema_arrow.names, columns, path)
            for batch in table.iter_batches(columns=list(columns)):
                values = (batch.column(name).to_pylist() for name in columns)
                for row in zip(*values, strict=True):
                    line += 1
                    yield line, list(row)
    except OSError as error:
        raise InvalidData(path, error.strerror or str(error)) from error
    except pyarrow.ArrowException as error:
        raise InvalidData(path, f"cannot be read as parquet: {error}", line=line + 1) from error
    except UnicodeDecodeError as error:
        raise InvalidData(path, "not valid UTF-8", line=line + 1) from error


READERS: dict[str, Reader] = {
    ".csv": _read_csv,
    ".tsv": _read_tsv,
    ".jsonl": _read_jsonl,
    ".parquet": _read_parquet,
}


def _positions(header: Sequence[str], columns: Sequence[str], path: Path) -> list[int]:
    for name in columns:
        if header.count(name) != 1:
            problem = "is missing" if name not in header else "occurs more than once"
            message = f"{problem}; the columns are {', '.join(header)}"
            raise InvalidData(path, message, line=1, field=name)
    return [header.index(name) for name in columns]


def _text(value: Any, path: Path, line: int, column: str) -> str:
    if not isinstance(value, str):
        message = f"must be a text, not {type(value).__name__}"
        raise InvalidData(path, message, line=line, field=column)
    text = " ".join(value.split())
    if not text:
        raise InvalidData(path, "is empty", line=line, field=column)
    return text


def _id(value: Any, path: Path, line: int, column: str) -> str:
    return _text(str(value) if type(value) is int else value, path, line, column)


def _weight(value: Any, path: Path, line: int, column: str) -> float:
    try:
        weight = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        weight = math.nan
    if not (math.isfinite(weight) and weight > 0):
        message = f"{value!r} is not a positive finite number"
        raise InvalidData(path, message, line=line, field=column)
    return weight

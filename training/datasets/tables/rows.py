"""Rows of a table file, with the line number of each.

    .csv      a header line; fields may be quoted; see `separated` for delimiters
    .tsv      tab-separated with a header line; no quoting
    .jsonl    one JSON object a line
    .parquet  needs pyarrow; a "line" in messages is the row, from 1

All but parquet may be gzip (`.gz`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from service.core.errors import InvalidData, InvalidInput, MissingExtra
from training.datasets.bad_rows import OnBadRow, stop
from training.datasets.lines import json_rows
from training.datasets.tables import cells
from training.datasets.tables.separated import (
    column_positions,
    read_csv,
    read_tsv,
    sniff_delimiter,
)

ENDINGS = (".csv", ".tsv", ".jsonl", ".parquet")

Cell = TypeVar("Cell")


@dataclass(frozen=True, kw_only=True)
class Columns:
    """The names of a table's columns.

    Attributes
    ----------
    query
        The column that holds queries.
    label
        The column that holds keywords.
    weight
        A column of positive numbers, summed for equal pairs. Default: every row weighs 1.
    label_id
        A column of keyword ids. Default: the text is the id.
    time
        A column of times, Unix seconds or ISO 8601: the newest queries become the test split.
    """

    query: str
    label: str
    weight: str | None = None
    label_id: str | None = None
    time: str | None = None

    def names(self) -> list[str]:
        """The columns that are read, each once."""
        given = (self.query, self.label, self.weight, self.label_id, self.time)
        return list(dict.fromkeys(name for name in given if name is not None))


class Row(NamedTuple):
    """One pair of the table; texts have normal whitespace."""

    line: int
    query: str
    label: str
    weight: float
    label_id: str
    time: float  # Unix seconds, 0 without a column of times


def delimiter_of(path: Path, columns: Columns, *, given: str | None = None) -> str | None:
    """The delimiter to read a csv file with: the one that is `given`, or that of its header.

    None for other files. Raises `InvalidInput` where one is given for such a file.
    """
    if _ending(path) == ".csv":
        return given if given is not None else sniff_delimiter(path, columns.names())
    if given is not None:
        raise InvalidInput(f"{path.name} is no .csv file, so it has no delimiter to choose")
    return None


def read_rows(
    path: Path, columns: Columns, *, delimiter: str | None = None, on_bad: OnBadRow = stop
) -> Iterator[Row]:
    """Yield the rows; `delimiter` is for csv files, by default that of the header.

    `on_bad` gets `InvalidData` with file, line and column of every bad row. Raises `InvalidData`
    for a file or a header that cannot be read, `MissingExtra` for parquet without pyarrow.
    """
    names = columns.names()
    for line, values in _values(path, columns, delimiter, on_bad):
        try:
            row = _row(path, line, columns, dict(zip(names, values, strict=True)))
        except InvalidData as error:
            on_bad(error)
            continue
        yield row


def _values(
    path: Path, columns: Columns, delimiter: str | None, on_bad: OnBadRow
) -> Iterator[tuple[int, list[Any]]]:
    """(line, values of the columns in the order of their names) of each row."""
    ending, names = _ending(path), columns.names()
    if ending == ".csv":
        delimiter = delimiter or sniff_delimiter(path, names)
        return read_csv(path, names, delimiter=delimiter, on_bad=on_bad)
    if ending == ".tsv":
        return read_tsv(path, names, on_bad=on_bad)
    return (_read_jsonl if ending == ".jsonl" else _read_parquet)(path, names, on_bad)


def _ending(path: Path) -> str:
    """The ending that says the format; `InvalidData` for an unknown one."""
    packed = path.suffix == ".gz"
    ending = Path(path.stem).suffix if packed else path.suffix
    if ending not in ENDINGS or (packed and ending == ".parquet"):
        allowed = "a .csv, .tsv or .jsonl file (each may be followed by .gz) or a .parquet file"
        raise InvalidData(path, f"unknown ending; expected {allowed}")
    return ending


def _read_jsonl(
    path: Path, columns: Sequence[str], on_bad: OnBadRow
) -> Iterator[tuple[int, list[Any]]]:
    for line, row in json_rows(path, on_bad):
        missing = next((name for name in columns if name not in row), None)
        if missing is None:
            yield line, [row[name] for name in columns]
        else:
            message = f"is missing; the columns are {', '.join(row) or 'none'}"
            on_bad(InvalidData(path, message, line=line, field=missing))


def _read_parquet(
    path: Path, columns: Sequence[str], _: OnBadRow
) -> Iterator[tuple[int, list[Any]]]:
    try:
        import pyarrow
        from pyarrow.parquet import ParquetFile
    except ModuleNotFoundError as error:
        raise MissingExtra("pyarrow", extra="training") from error
    line = 0
    try:
        with ParquetFile(path) as table:
            column_positions(table.schema_arrow.names, columns, path)
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


def _row(path: Path, line: int, columns: Columns, values: Mapping[str, Any]) -> Row:
    def cell(column: str, parse: Callable[[Any], Cell]) -> Cell:
        try:
            return parse(values[column])
        except ValueError as error:
            raise InvalidData(path, str(error), line=line, field=column) from error

    label = cell(columns.label, cells.text)
    return Row(
        line=line,
        query=cell(columns.query, cells.text),
        label=label,
        weight=1.0 if columns.weight is None else cell(columns.weight, cells.weight),
        label_id=label if columns.label_id is None else cell(columns.label_id, cells.label_id),
        time=0.0 if columns.time is None else cell(columns.time, cells.time),
    )

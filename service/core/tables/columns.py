"""Columns of a table file, with the line number of each row.

    .csv      a header line; fields may be quoted; see `separated` for delimiters
    .tsv      tab-separated with a header line; no quoting
    .jsonl    one JSON object a line
    .txt      one text a line, without a header: the only column, whatever its name
    .parquet  needs pyarrow; a "line" in messages is the row, from 1

All but parquet may be gzip (`.gz`). Blank lines of a table are skipped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from service.core.errors import InvalidData, InvalidInput, MissingExtra
from service.core.files.bad_rows import OnBadRow, stop
from service.core.files.lines import json_rows, numbered_lines
from service.core.tables.separated import (
    check_columns,
    missing_column,
    read_csv,
    read_tsv,
    sniff_delimiter,
)

ENDINGS = (".csv", ".tsv", ".jsonl", ".txt", ".parquet")
AFTER = "file (each may be followed by .gz), or a .parquet file"

Row = tuple[int, list[Any]]  # its line, and the values of the wanted columns


def read_columns(
    path: Path,
    columns: Sequence[str],
    *,
    delimiter: str | None = None,
    on_bad: OnBadRow = stop,
    extra: str = "bulk",
) -> Iterator[Row]:
    """Yield the line and the values of `columns` of each row.

    `delimiter` is for csv files, by default that of the header. `on_bad` gets `InvalidData` with
    file, line and column of every bad row. Raises `InvalidData` for a file or a header that cannot
    be read, and `MissingExtra`, which names `extra`, for parquet without pyarrow.
    """
    ending = ending_of(path, columns=len(columns))
    if ending == ".csv":
        parted = delimiter_of(path, columns, given=delimiter)
        return read_csv(path, columns, delimiter=parted or ",", on_bad=on_bad)
    delimiter_of(path, columns, given=delimiter)
    if ending == ".parquet":
        return _read_parquet(path, columns, extra)
    read = {".tsv": read_tsv, ".jsonl": _read_jsonl, ".txt": _read_text}[ending]
    return read(path, columns, on_bad=on_bad)


def ending_of(path: Path, *, columns: int = 1) -> str:
    """The ending that tells the format, without .gz; raises `InvalidData` for an unknown one.

    Its message offers a text file only where one column is wanted.
    """
    packed = path.suffix == ".gz"
    ending = Path(path.stem).suffix if packed else path.suffix
    if ending not in ENDINGS or (packed and ending == ".parquet"):
        known = ".csv, .tsv, .jsonl or .txt" if columns == 1 else ".csv, .tsv or .jsonl"
        raise InvalidData(path, f"unknown ending; expected a {known} {AFTER}")
    return ending


def delimiter_of(path: Path, columns: Sequence[str], *, given: str | None = None) -> str | None:
    """The delimiter to read a csv file with: the one that is `given`, or that of its header.

    None for other files. Raises `InvalidInput` where one is given for such a file.
    """
    if ending_of(path, columns=len(columns)) == ".csv":
        return given if given is not None else sniff_delimiter(path, columns)
    if given is not None:
        raise InvalidInput(f"{path.name} is no .csv file, so it has no delimiter to choose")
    return None


def _read_text(path: Path, columns: Sequence[str], *, on_bad: OnBadRow) -> Iterator[Row]:
    if len(columns) > 1:
        raise InvalidData(path, f"has one column, and {len(columns)} are wanted; give a table")
    damaged: list[InvalidData] = []
    for line, text in numbered_lines(path, damaged.append):
        if damaged:
            on_bad(damaged.pop())
        else:
            yield line, [text]


def _read_jsonl(path: Path, columns: Sequence[str], *, on_bad: OnBadRow) -> Iterator[Row]:
    for line, row in json_rows(path, on_bad, skip_blank=True):
        missing = next((name for name in columns if name not in row), None)
        if missing is None:
            yield line, [row[name] for name in columns]
        else:
            on_bad(missing_column(path, missing, list(row), line=line))


def _read_parquet(path: Path, columns: Sequence[str], extra: str) -> Iterator[Row]:
    try:
        import pyarrow
        from pyarrow.parquet import ParquetFile
    except ModuleNotFoundError as error:
        raise MissingExtra("pyarrow", extra=extra) from error
    line = 0
    try:
        with ParquetFile(path) as table:
            check_columns(table.schema_arrow.names, columns, path)
            for batch in table.iter_batches(columns=list(columns)):
                values = (batch.column(name).to_pylist() for name in columns)
                for row in zip(*values, strict=True):
                    line += 1
                    yield line, list(row)
    except OSError as error:
        raise InvalidData(path, f"cannot be read: {error.strerror or error}") from error
    except pyarrow.ArrowException as error:
        raise InvalidData(path, f"cannot be read as parquet: {error}", line=line + 1) from error
    except UnicodeDecodeError as error:
        raise InvalidData(path, "not valid UTF-8", line=line + 1) from error

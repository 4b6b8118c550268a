"""Columns of a table file, with the line number of each row.

    .csv      with a header line; fields may be quoted; separated by ',', ';', '|' or tab,
              whichever the header holds most
    .tsv      separated by tabs, with a header line; no quoting
    .jsonl    one JSON object a line
    .txt      one text a line, without a header: the only column, whatever its name
    .parquet  needs pyarrow; a "line" in messages is the row, from 1

All but parquet may be gzip (`.gz`). Lines end at a line feed only: a text may hold U+2028.
"""

from __future__ import annotations

import csv
import gzip
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, cast

import orjson

from service.core.errors import InvalidData, MissingExtra

SEPARATORS = ",;\t|"
ENDINGS = "a .csv, .tsv, .jsonl or .txt file (each may be followed by .gz), or a .parquet file"

Row = tuple[int, list[Any]]  # its line, and the values of the wanted columns
Reader = Callable[[Path, Sequence[str]], Iterator[Row]]


def read_columns(path: Path, columns: Sequence[str]) -> Iterator[Row]:
    """Yield the line and the values of `columns` of each row; blank lines of a table are skipped.

    Raises `InvalidData` with file, line and column, and `MissingExtra` for parquet without pyarrow.
    """
    return READERS[ending_of(path)](path, columns)


def ending_of(path: Path) -> str:
    """The ending that tells the format, without .gz; raises `InvalidData` for an unknown one."""
    packed = path.suffix == ".gz"
    ending = Path(path.stem).suffix if packed else path.suffix
    if ending not in READERS or (packed and ending == ".parquet"):
        raise InvalidData(path, f"unknown ending; expected {ENDINGS}")
    return ending


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line number from 1, text without line end); a byte order mark is dropped."""
    number = 0
    try:
        with _open(path) as stream:
            for number, raw in enumerate(stream, start=1):
                text = raw.decode("utf-8-sig" if number == 1 else "utf-8")
                yield number, text.removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        raise InvalidData(path, "not valid UTF-8; save the file as UTF-8", line=number) from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InvalidData(
            path, "the gzip stream is damaged or cut short", line=number + 1
        ) from error
    except OSError as error:
        raise InvalidData(path, f"cannot be read: {error.strerror or error}") from error


def _open(path: Path) -> BinaryIO:
    # GzipFile can be read like a binary file, which its type stub does not say.
    return cast(BinaryIO, gzip.open(path)) if path.suffix == ".gz" else path.open("rb")


def _read_text(path: Path, columns: Sequence[str]) -> Iterator[Row]:
    if len(columns) > 1:
        raise InvalidData(path, f"has one column, and {len(columns)} are wanted; give a table")
    return ((line, [text]) for line, text in _lines(path))


def _read_csv(path: Path, columns: Sequence[str]) -> Iterator[Row]:
    _, header = next(_lines(path), (1, ""))
    lines = (f"{text}\n" for _, text in _lines(path))
    # strict: a stray quote is an error; otherwise the rest of the table would become one field.
    separator = max(SEPARATORS, key=header.count)
    return _read_separated(path, columns, csv.reader(lines, delimiter=separator, strict=True))


def _read_tsv(path: Path, columns: Sequence[str]) -> Iterator[Row]:
    lines = (text for _, text in _lines(path))
    reader = csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
    return _read_separated(path, columns, reader)


def _read_separated(path: Path, columns: Sequence[str], reader: Any) -> Iterator[Row]:
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
            elif values:
                yield start, [values[position] for position in positions]
            start = reader.line_num + 1
    except csv.Error as error:
        raise InvalidData(path, f"not a valid row: {error}", line=start) from error
    if header is None:
        raise InvalidData(path, "is empty; expected a header line with the columns' names")


def _read_jsonl(path: Path, columns: Sequence[str]) -> Iterator[Row]:
    for line, text in _lines(path):
        if not text.strip():
            continue
        try:
            row = orjson.loads(text)
        except orjson.JSONDecodeError as error:
            raise InvalidData(path, f"not valid JSON: {error}", line=line) from error
        if not isinstance(row, dict):
            raise InvalidData(path, f"expected a JSON object, not {type(row).__name__}", line=line)
        for name in columns:
            if name not in row:
                raise _missing(path, name, list(row), line=line)
        yield line, [row[name] for name in columns]


def _read_parquet(path: Path, columns: Sequence[str]) -> Iterator[Row]:
    try:
        import pyarrow
        from pyarrow.parquet import ParquetFile
    except ModuleNotFoundError as error:
        raise MissingExtra("pyarrow", extra="bulk") from error
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
        raise InvalidData(path, f"cannot be read: {error.strerror or error}") from error
    except pyarrow.ArrowException as error:
        raise InvalidData(path, f"cannot be read as parquet: {error}", line=line + 1) from error
    except UnicodeDecodeError as error:
        raise InvalidData(path, "not valid UTF-8", line=line + 1) from error


def _positions(header: Sequence[str], columns: Sequence[str], path: Path) -> list[int]:
    for name in columns:
        if name not in header:
            raise _missing(path, name, header, line=1)
        if header.count(name) > 1:
            raise InvalidData(path, "occurs more than once; rename one", line=1, field=name)
    return [header.index(name) for name in columns]


def _missing(path: Path, name: str, known: Sequence[str], *, line: int) -> InvalidData:
    message = f"there is no such column; the columns are {', '.join(known) or 'none'}"
    return InvalidData(path, message, line=line, field=name)


READERS: dict[str, Reader] = {
    ".csv": _read_csv,
    ".tsv": _read_tsv,
    ".jsonl": _read_jsonl,
    ".txt": _read_text,
    ".parquet": _read_parquet,
}

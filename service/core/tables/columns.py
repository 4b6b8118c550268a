"""Reads columns of a table file, with the line number of each row.

    .csv      a header line; fields may be quoted; see `separated` for delimiters
    .tsv      tab-separated with a header line; no quoting
    .jsonl    one JSON object per line
    .txt      one text per line, without a header: the only column, whatever its name
    .parquet  needs pyarrow; a "line" in messages is the row, from 1

All formats except parquet may be gzip (`.gz`). Blank lines of a table are skipped. A table may be
in several files (`parts_of`). The functions for a cell raise `ValueError` that says what is wrong.
"""

from __future__ import annotations

import glob
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from service.core.errors import InvalidData, InvalidInput, MissingExtra
from service.core.files.lines import OnBadRow, good_lines, json_rows, stop
from service.core.tables.separated import (
    check_columns,
    missing_column,
    read_separated,
    sniff_delimiter,
)
from service.core.text_identity import readable, uncontrolled

ENDINGS = (".csv", ".tsv", ".jsonl", ".txt", ".parquet")
AFTER = "file (each may be followed by .gz), or a .parquet file"

Row = tuple[int, list[Any]]  # its line, and the values of the requested columns


def read_columns(
    path: Path,
    columns: Sequence[str],
    *,
    delimiter: str | None = None,
    on_bad: OnBadRow = stop,
    extra: str = "bulk",
) -> Iterator[Row]:
    """Yield the line and the values of `columns` for each row.

    `delimiter` is only for csv files; by default it is found in the header. `on_bad` gets an
    `InvalidData` with file, line and column for every bad row. Raises `InvalidData` if the file or
    its header cannot be read, and `MissingExtra`, which names `extra`, for parquet without pyarrow.
    """
    ending = ending_of(path, columns=len(columns))
    chosen = delimiter_of(path, columns, given=delimiter)
    if ending == ".parquet":
        return _read_parquet(path, columns, extra, on_bad=on_bad)
    if ending in (".jsonl", ".txt"):
        read = _read_jsonl if ending == ".jsonl" else _read_text
        return read(path, columns, on_bad=on_bad)
    quoted = ending == ".csv"
    return read_separated(path, columns, delimiter=chosen or "\t", quoted=quoted, on_bad=on_bad)


def parts_of(given: Sequence[Path]) -> list[Path]:
    """Return the files of a table, in the order in which they are read.

    Each of `given` is a file, a folder or a pattern such as `logs/*.parquet`. Files of a folder,
    also those in folders below it, and files of a pattern are sorted by name. A folder's names that
    begin with `.` or `_`, such as `_SUCCESS`, are left out.

    Raises `InvalidData` if a folder or a pattern has no file, and if a file is named twice.
    """
    parts = [part for path in given for part in _parts(path)]
    seen: set[Path] = set()
    for part in parts:
        if part.resolve() in seen:
            raise InvalidData(part, "is named twice, so its rows would count twice")
        seen.add(part.resolve())
    return parts


def _parts(path: Path) -> list[Path]:
    if path.is_dir():
        files = [file for file in sorted(path.rglob("*")) if file.is_file()]
        parts = [file for file in files if not _left_out(file.relative_to(path))]
        if not parts:
            raise InvalidData(path, "is a folder without files of a table")
        return parts
    if glob.has_magic(str(path)) and not path.exists():
        found = sorted(map(Path, glob.glob(str(path), recursive=True)))
        if not found:
            raise InvalidData(path, "no file matches this pattern")
        return [part for one in found for part in _parts(one)]
    return [path]


def _left_out(path: Path) -> bool:
    return any(name.startswith((".", "_")) for name in path.parts)


def require_alike(parts: Sequence[Path], columns: Sequence[str], *, extra: str = "bulk") -> None:
    """Raise `InvalidData` for a part that cannot be opened, or lacks a column that is read.

    In parquet parts, a column must also hold the same kind of values as in the parts before. Cells
    are not read, and a .jsonl file has no header to check.
    """
    kinds: dict[str, tuple[str, Path]] = {}
    for part in parts:
        ending = ending_of(part, columns=len(columns))
        if ending in (".csv", ".tsv"):
            next(read_columns(part, columns, on_bad=lambda error: None), None)
        if ending != ".parquet":
            continue
        for name, kind in _parquet_kinds(part, columns, extra).items():
            known, first = kinds.setdefault(name, (kind, part))
            if kind != known:
                message = f"holds {kind}, but in {first} {known}"
                raise InvalidData(part, message, field=name)


def _parquet_kinds(path: Path, columns: Sequence[str], extra: str) -> dict[str, str]:
    """Return the kind of values of each column; a column that is null everywhere has none."""
    try:
        import pyarrow
        from pyarrow.parquet import read_schema
    except ModuleNotFoundError as error:
        raise MissingExtra("pyarrow", extra=extra) from error
    try:
        schema = read_schema(path)
    except OSError as error:
        raise InvalidData(path, f"cannot be read: {error.strerror or error}") from error
    except pyarrow.ArrowException as error:
        raise InvalidData(path, f"cannot be read as parquet: {error}") from error
    check_columns(schema.names, columns, path)
    types = {name: schema.field(name).type for name in columns}
    return {name: _kind(type_) for name, type_ in types.items() if str(type_) != "null"}


def _kind(type_: Any) -> str:
    """Return the kind of Python values that a column of this arrow type becomes."""
    from pyarrow import types

    if types.is_dictionary(type_):
        return _kind(type_.value_type)
    if types.is_string(type_) or types.is_large_string(type_) or types.is_string_view(type_):
        return "texts"
    if types.is_integer(type_) or types.is_floating(type_) or types.is_decimal(type_):
        return "numbers"
    if types.is_timestamp(type_) or types.is_date(type_):
        return "times"
    if types.is_list(type_) or types.is_large_list(type_):
        return f"lists of {_kind(type_.value_type)}"
    return f"values of the type {type_}"


def ending_of(path: Path, *, columns: int = 1) -> str:
    """Return the file ending of the format, without .gz; raises `InvalidData` if it is unknown."""
    packed = path.suffix == ".gz"
    ending = Path(path.stem).suffix if packed else path.suffix
    if ending not in ENDINGS or (packed and ending == ".parquet"):
        known = ".csv, .tsv, .jsonl or .txt" if columns == 1 else ".csv, .tsv or .jsonl"
        raise InvalidData(path, f"unknown ending; expected a {known} {AFTER}")
    return ending


def delimiter_of(path: Path, columns: Sequence[str], *, given: str | None = None) -> str | None:
    """Return the delimiter of a csv file: `given`, or the one found in the header.

    For other files, returns None; raises `InvalidInput` if a delimiter is given for one.
    """
    if ending_of(path, columns=len(columns)) == ".csv":
        return given if given is not None else sniff_delimiter(path, columns)
    if given is not None:
        raise InvalidInput(f"{path.name} is no .csv file, so it has no delimiter to choose")
    return None


def _read_text(path: Path, columns: Sequence[str], *, on_bad: OnBadRow) -> Iterator[Row]:
    if len(columns) > 1:
        raise InvalidData(path, f"has one column, and {len(columns)} are wanted; give a table")
    for line, text in good_lines(path, on_bad):
        yield line, [text]


def _read_jsonl(path: Path, columns: Sequence[str], *, on_bad: OnBadRow) -> Iterator[Row]:
    for line, row in json_rows(path, on_bad, skip_blank=True):
        missing = next((name for name in columns if name not in row), None)
        if missing is None:
            yield line, [row[name] for name in columns]
        else:
            on_bad(missing_column(path, missing, list(row), line=line))


def _read_parquet(
    path: Path, columns: Sequence[str], extra: str, *, on_bad: OnBadRow
) -> Iterator[Row]:
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
                values = (_python_values(batch.column(name)) for name in columns)
                for row in zip(*values, strict=True):
                    line += 1
                    if _NO_TIME in row:
                        field = columns[row.index(_NO_TIME)]
                        message = "holds no time of the years 1 to 9999"
                        on_bad(InvalidData(path, message, line=line, field=field))
                    else:
                        yield line, list(row)
    except OSError as error:
        raise InvalidData(path, f"cannot be read: {error.strerror or error}") from error
    except pyarrow.ArrowException as error:
        raise InvalidData(path, f"cannot be read as parquet: {error}", line=line + 1) from error
    except UnicodeDecodeError as error:
        raise InvalidData(path, "not valid UTF-8", line=line + 1) from error


_NO_TIME: Any = object()  # stands for a time that Python does not have


def _python_values(column: Any) -> list[Any]:
    """Return the values of an arrow column; times have microseconds, and UTC as their zone.

    Without pandas, pyarrow returns no nanoseconds, which INT96 has, too. Other zones need a
    database of zones, which not every system has.
    """
    import pyarrow
    from pyarrow import types

    kind = column.type.value_type if types.is_dictionary(column.type) else column.type
    if types.is_timestamp(kind):
        unit = "us" if kind.unit == "ns" else kind.unit
        kind = pyarrow.timestamp(unit, tz=None if kind.tz is None else "UTC")
    if kind != column.type:
        column = column.cast(kind, safe=False)
    try:
        values: list[Any] = column.to_pylist()
    except (ValueError, OverflowError):
        values = list(map(_python_time, column))
    return values


def _python_time(value: Any) -> Any:
    try:
        return value.as_py()
    except (ValueError, OverflowError):
        return _NO_TIME


def text_cell(value: Any) -> str:
    """Return a text with normalized white space, as `readable` allows it."""
    if not isinstance(value, str | None):
        raise ValueError(f"must be a text, not {type(value).__name__}")
    normal = " ".join(uncontrolled(value or "").split())  # U+001C to U+001F are spaces to `split`
    if not normal:
        raise ValueError("is empty")
    return readable(normal)


def label_id_cell(value: Any) -> str:
    """Return a text, or a whole number as text."""
    return text_cell(str(value) if type(value) is int else value)


def items_cell(value: Any, *, delimiter: str) -> tuple[str, ...]:
    """Return texts or whole numbers, from a list or separated by `delimiter`; () if empty."""
    if isinstance(value, str):
        parts: list[Any] = value.split(delimiter)
    elif isinstance(value, list):
        parts = value
    else:
        parts = [value]
    return tuple(label_id_cell(part) for part in parts if not is_blank(part))


def is_blank(value: Any) -> bool:
    """Whether a cell, or a part of a cell, is empty."""
    return value is None or (isinstance(value, str) and not value.strip())

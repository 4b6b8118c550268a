"""Reads the pairs of a table file and their line numbers, in the formats of `core.tables`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import partial
from pathlib import Path
from time import time
from typing import Any, NamedTuple, TypeVar

from service.core.errors import InvalidData, InvalidInput
from service.core.files.lines import OnBadRow, stop
from service.core.memory.decay import can_be_now
from service.core.tables.columns import is_blank, items_cell, label_id_cell, read_columns, text_cell

LATEST = 1e11  # seconds; a larger number is probably milliseconds
# Weights between these, summed and made older, stay apart as float32.
LEAST_WEIGHT, MOST_WEIGHT = 1e-30, 1e30


def weight_of(value: Any) -> float:
    """Read a positive number between `LEAST_WEIGHT` and `MOST_WEIGHT`."""
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not (math.isfinite(number) and number > 0):
        raise ValueError(f"{value!r} is not a positive finite number")
    if not LEAST_WEIGHT <= number <= MOST_WEIGHT:
        bounds = f"{LEAST_WEIGHT:g} to {MOST_WEIGHT:g}"
        raise ValueError(f"{value!r} is not a number from {bounds}; scale all weights alike")
    return number


def time_of(value: Any, *, now: float) -> float:
    """Return a time, Unix seconds or ISO 8601, in Unix seconds; without a time zone it is UTC.

    Raises `ValueError` for what is no time, or one that the service would refuse for a click at the
    Unix time `now`: a single row from the future would make all others old.
    """
    try:
        seconds = _seconds(value)
    except (TypeError, ValueError, OverflowError):
        seconds = math.nan
    if not 0 <= seconds < LATEST:
        raise ValueError(f"{value!r} is no time: neither Unix seconds nor ISO 8601")
    if not can_be_now(seconds, now=now):
        raise ValueError(f"{str(value)!r} has not passed (without a time zone, a time is UTC)")
    return seconds


def _seconds(value: Any) -> float:
    if isinstance(value, bool):
        return math.nan
    if isinstance(value, date) and not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day)
    if isinstance(value, str):
        value = value.strip().upper().removesuffix(" UTC")  # RFC 3339 allows small t and z
        try:
            return float(value)
        except ValueError:
            value = datetime.fromisoformat(value)
    if isinstance(value, datetime):
        return (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()
    return float(value)


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
        A column of positive numbers, summed for equal pairs. An empty cell counts as 1. Default:
        every row weighs 1.
    label_id
        A column of keyword ids. Default: the text in NFKC, case-folded, is the id.
    time
        A column of times, Unix seconds or ISO 8601: the newest queries become the test split.
    metadata
        A column of the query's metadata items, such as categories; may be given several times.
    label_metadata
        A column of the keyword's metadata items; may be given several times.
    metadata_delimiter
        The text that separates the items of a metadata cell, or a catalogue's aliases of one cell.
        An empty cell has none.
    """

    query: str
    label: str
    weight: str | None = None
    label_id: str | None = None
    time: str | None = None
    metadata: tuple[str, ...] = ()
    label_metadata: tuple[str, ...] = ()
    metadata_delimiter: str = "|"

    def __post_init__(self) -> None:
        if self.query == self.label:
            raise InvalidInput(f"--query and --label name the same column, {self.query!r}")
        if not self.metadata_delimiter:
            message = "what parts the items of a cell must be one character or more"
            raise InvalidInput(message, field="metadata_delimiter")

    def names(self) -> list[str]:
        """Return the columns that are read, each once."""
        single = (self.query, self.label, self.weight, self.label_id, self.time)
        given = (*single, *self.metadata, *self.label_metadata)
        return list(dict.fromkeys(name for name in given if name is not None))


class Row(NamedTuple):
    """One pair of the table; its texts have single spaces."""

    line: int
    query: str
    label: str
    weight: float
    unweighted: bool  # whether the weight's cell is empty
    label_id: str | None  # None without a column of ids
    time: float  # Unix seconds, 0 without a column of times
    metadata: tuple[str, ...]  # the query's items; empty without such a column
    label_metadata: tuple[str, ...]


def read_rows(
    path: Path,
    columns: Columns,
    *,
    delimiter: str | None = None,
    on_bad: OnBadRow = stop,
    labels_are_ids: bool = False,
) -> Iterator[Row]:
    """Yield the rows; `delimiter` is for csv files, by default the one that fits the header.

    If `labels_are_ids`, the column of labels may hold whole numbers.
    `on_bad` gets an `InvalidData` with file, line and column for each bad row. Raises `InvalidData`
    for a file or a header that cannot be read, `MissingExtra` for parquet without pyarrow.
    """
    names, parse_time = columns.names(), partial(time_of, now=time())
    rows = read_columns(path, names, delimiter=delimiter, on_bad=on_bad, extra="training")
    label_cell = label_id_cell if labels_are_ids else text_cell
    for line, values in rows:
        try:
            cells = dict(zip(names, values, strict=True))
            row = _row(path, line, columns, cells, label_cell, parse_time)
        except InvalidData as error:
            on_bad(error)
            continue
        yield row


def _row(
    path: Path,
    line: int,
    columns: Columns,
    values: Mapping[str, Any],
    label_cell: Callable[[Any], str],
    parse_time: Callable[[Any], float],
) -> Row:
    def cell(column: str, parse: Callable[[Any], Cell]) -> Cell:
        try:
            return parse(values[column])
        except ValueError as error:
            raise InvalidData(path, str(error), line=line, field=column) from error

    def items(names: tuple[str, ...]) -> tuple[str, ...]:
        parse = partial(items_cell, delimiter=columns.metadata_delimiter)
        return tuple(dict.fromkeys(item for name in names for item in cell(name, parse)))

    def optional(column: str | None, parse: Callable[[Any], Cell], default: Cell) -> Cell:
        return default if column is None else cell(column, parse)

    unweighted = columns.weight is not None and is_blank(values[columns.weight])
    return Row(
        line=line,
        query=cell(columns.query, text_cell),
        label=cell(columns.label, label_cell),
        weight=optional(None if unweighted else columns.weight, weight_of, 1.0),
        unweighted=unweighted,
        label_id=None if columns.label_id is None else cell(columns.label_id, label_id_cell),
        time=optional(columns.time, parse_time, 0.0),
        metadata=items(columns.metadata),
        label_metadata=items(columns.label_metadata),
    )

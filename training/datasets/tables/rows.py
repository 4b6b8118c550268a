"""Pairs of a table file, with the line number of each; the formats are those of `core.tables`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from service.core.errors import InvalidData, InvalidInput
from service.core.files.bad_rows import OnBadRow, stop
from service.core.tables import text_cells
from service.core.tables.columns import read_columns
from training.datasets.tables import cells

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
    metadata
        A column of the query's metadata items, such as categories; may be given several times.
    label_metadata
        A column of the keyword's metadata items; may be given several times.
    metadata_delimiter
        What parts the items of a metadata cell. An empty cell has none.
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
        """The columns that are read, each once."""
        single = (self.query, self.label, self.weight, self.label_id, self.time)
        given = (*single, *self.metadata, *self.label_metadata)
        return list(dict.fromkeys(name for name in given if name is not None))


class Row(NamedTuple):
    """One pair of the table; texts have normal whitespace."""

    line: int
    query: str
    label: str
    weight: float
    label_id: str
    time: float  # Unix seconds, 0 without a column of times
    metadata: tuple[str, ...]  # of the query, none without such a column
    label_metadata: tuple[str, ...]


def read_rows(
    path: Path, columns: Columns, *, delimiter: str | None = None, on_bad: OnBadRow = stop
) -> Iterator[Row]:
    """Yield the rows; `delimiter` is for csv files, by default that of the header.

    `on_bad` gets `InvalidData` with file, line and column of every bad row. Raises `InvalidData`
    for a file or a header that cannot be read, `MissingExtra` for parquet without pyarrow.
    """
    names = columns.names()
    rows = read_columns(path, names, delimiter=delimiter, on_bad=on_bad, extra="training")
    for line, values in rows:
        try:
            row = _row(path, line, columns, dict(zip(names, values, strict=True)))
        except InvalidData as error:
            on_bad(error)
            continue
        yield row


def _row(path: Path, line: int, columns: Columns, values: Mapping[str, Any]) -> Row:
    def cell(column: str, parse: Callable[[Any], Cell]) -> Cell:
        try:
            return parse(values[column])
        except ValueError as error:
            raise InvalidData(path, str(error), line=line, field=column) from error

    def items(names: tuple[str, ...]) -> tuple[str, ...]:
        parse = partial(text_cells.items, delimiter=columns.metadata_delimiter)
        return tuple(dict.fromkeys(item for name in names for item in cell(name, parse)))

    label = cell(columns.label, text_cells.text)
    return Row(
        line=line,
        query=cell(columns.query, text_cells.text),
        label=label,
        weight=1.0 if columns.weight is None else cell(columns.weight, cells.weight),
        label_id=label if columns.label_id is None else cell(columns.label_id, text_cells.label_id),
        time=0.0 if columns.time is None else cell(columns.time, cells.time),
        metadata=items(columns.metadata),
        label_metadata=items(columns.label_metadata),
    )

"""The queries of a file, checked by the rules of `POST /predict`."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from service.core.errors import InvalidConfig, InvalidData, InvalidInput, echoed
from service.core.items.fusion import places_of
from service.core.items.item_memory import ItemMemory
from service.core.tables.columns import ending_of, items_cell, read_columns
from service.core.tables.separated import DelimiterOption, delimiter_character
from service.http.bodies import text_type
from service.settings import Limits

OnBadRow = Literal["stop", "skip"]
ONLY_COLUMN = "text"  # name of a text file's only column in messages


@dataclass(frozen=True, kw_only=True)
class ItemsColumn:
    """The column in which a row names its items, under the limits of `POST /predict`.

    `delimiter` separates the items in a cell. Names are looked up in `memory`, if there is one.
    """

    name: str
    limits: Limits
    delimiter: str = "|"
    memory: ItemMemory | None = None

    def __post_init__(self) -> None:
        if not self.delimiter:
            raise InvalidConfig("--items-delimiter must be one character or more")

    def items_of(self, cell: Any) -> tuple[str, ...] | None:
        """Return the names in a cell. None, for an empty cell, means predicted items.

        An empty list means no items. Raises `ValueError`, which says what is wrong.
        """
        names = items_cell(cell, delimiter=self.delimiter)
        if not names and not isinstance(cell, list):
            return None
        if len(names) > self.limits.items:
            raise ValueError(f"names {len(names):,} items; at most {self.limits.items} are allowed")
        for name in names:
            if len(name) > self.limits.query_characters:
                raise ValueError(
                    f"the item {echoed(name)} has {len(name):,} characters; at most"
                    f" {self.limits.query_characters:,} are allowed"
                )
        if self.memory is not None:
            try:
                places_of(self.memory, names)
            except InvalidInput as error:
                raise ValueError(str(error)) from error
        return names


@dataclass(frozen=True, kw_only=True, slots=True)
class FileQuery:
    """One row's query, or the reason why it cannot be answered (`problem`).

    `items` names the items that it attends to; None means the predicted ones.
    """

    text: str
    problem: str = ""
    items: tuple[str, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class Survey:
    """A file's number of rows, its number of skipped rows, and the digest of all queries."""

    rows: int
    skipped: int
    digest: str


class QueryRule:
    """The rule of `POST /predict` for a query."""

    def __init__(self, limits: Limits) -> None:
        """Use the configured limits."""
        self._most = limits.query_characters
        self._adapter: TypeAdapter[str] = TypeAdapter(text_type(limits))

    def check(self, value: Any) -> FileQuery:
        """Return the trimmed query, or why it cannot be answered."""
        try:
            return FileQuery(text=self._adapter.validate_python(value, strict=True))
        except ValidationError:
            pass
        if not isinstance(value, str):
            kind = "empty" if value is None else f"no text but {type(value).__name__}"
            return FileQuery(text="", problem=f"the query is {kind}")
        if not value.strip():
            return FileQuery(text="", problem="the query is empty")
        problem = f"the query has {len(value):,} characters; at most {self._most:,} are allowed"
        return FileQuery(text=value, problem=problem)


class QueryFile:
    """The query column of a table, or the lines of a text file; can be read several times."""

    def __init__(
        self,
        path: Path,
        column: str | None,
        *,
        limits: Limits,
        on_bad_row: OnBadRow,
        delimiter: DelimiterOption | None = None,
        items: ItemsColumn | None = None,
    ) -> None:
        """Prepare to read `path`. Raises `InvalidConfig` if `column` is needed and missing.

        `delimiter` is for csv files and defaults to the header's. `on_bad_row` tells whether to
        skip a row whose query cannot be answered, or to raise `InvalidData`.
        """
        if column is None and ending_of(path) != ".txt":
            raise InvalidConfig(f"{path} is a table: name its column of queries by --query")
        self.path, self._column = path, column or ONLY_COLUMN
        self._delimiter = delimiter_character(delimiter)
        self._rule, self._on_bad_row = QueryRule(limits), on_bad_row
        self.items = items

    def knowing(self, memory: ItemMemory) -> QueryFile:
        """Return the same file, where a row with an item that is not in `memory` has a problem."""
        known = copy(self)
        known.items = None if self.items is None else replace(self.items, memory=memory)
        return known

    def __iter__(self) -> Iterator[FileQuery]:
        """Yield the query of each row, in the file's order."""
        columns = [self._column] if self.items is None else [self._column, self.items.name]
        for line, values in read_columns(self.path, columns, delimiter=self._delimiter):
            query, field = self._rule.check(values[0]), self._column
            if self.items is not None and not query.problem:
                field = self.items.name
                try:
                    query = replace(query, items=self.items.items_of(values[1]))
                except ValueError as error:
                    query = replace(query, problem=str(error))
            if query.problem and self._on_bad_row == "stop":
                advice = "correct the row, or pass --on-bad-row skip to leave it unanswered"
                raise InvalidData(self.path, f"{query.problem}; {advice}", line=line, field=field)
            yield query

    def survey(self) -> Survey:
        """Read the whole file once. Raises `InvalidData` if it is empty or has an error."""
        digest, rows, skipped = hashlib.sha256(), 0, 0
        for query in self:
            text = query.text.encode()
            digest.update(len(text).to_bytes(4, "little") + text + query.problem.encode())
            if query.items is not None:
                digest.update(b"\0" + "\0".join(query.items).encode() + b"\0")
            rows, skipped = rows + 1, skipped + bool(query.problem)
        if not rows:
            raise InvalidData(self.path, "holds no query; give a file with at least one row")
        return Survey(rows=rows, skipped=skipped, digest=digest.hexdigest())

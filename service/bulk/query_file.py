"""The queries of a file, each checked by the same rule as those of `POST /predict`."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from service.bulk.items_column import ItemsColumn
from service.core.errors import InvalidConfig, InvalidData
from service.core.items.item_memory import ItemMemory
from service.core.tables.columns import ending_of, read_columns
from service.core.tables.separated import DelimiterOption, delimiter_character
from service.http.request_models.texts import text_type
from service.settings import Limits

OnBadRow = Literal["stop", "skip"]
ONLY_COLUMN = "text"  # of a text file, in messages


@dataclass(frozen=True, kw_only=True, slots=True)
class FileQuery:
    """The query of one row, or why it cannot be answered (`problem`).

    `items` are names of the items that it attends to, in place of the predicted ones (None).
    """

    text: str
    problem: str = ""
    items: tuple[str, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class Survey:
    """What a file holds: its rows, those that are skipped, and the digest of all queries."""

    rows: int
    skipped: int
    digest: str


class QueryRule:
    """What `POST /predict` takes as a query."""

    def __init__(self, limits: Limits) -> None:
        """Check under the configured limits."""
        self._most = limits.query_characters
        self._adapter: TypeAdapter[str] = TypeAdapter(text_type(limits))

    def check(self, value: Any) -> FileQuery:
        """The query without white space at its ends, or why it cannot be answered."""
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
        """Use `path`, which is opened when it is read; raises `InvalidConfig` without a column.

        `delimiter` is for csv files, by default that of the header.

        On a row whose query cannot be answered, reading stops with `InvalidData`, or goes on.
        """
        if column is None and ending_of(path) != ".txt":
            raise InvalidConfig(f"{path} is a table: name its column of queries by --query")
        self.path, self._column = path, column or ONLY_COLUMN
        self._delimiter = delimiter_character(delimiter)
        self._rule, self._on_bad_row = QueryRule(limits), on_bad_row
        self.items = items

    def knowing(self, memory: ItemMemory) -> QueryFile:
        """The same file, in which an item that is not in `memory` is a problem of its row."""
        known = copy(self)
        known.items = None if self.items is None else self.items.known_by(memory)
        return known

    def __iter__(self) -> Iterator[FileQuery]:
        """Yield the query of each row, in the file's order."""
        columns = [self._column] if self.items is None else [self._column, self.items.name]
        for line, values in read_columns(self.path, columns, delimiter=self._delimiter):
            query, field = self._rule.check(values[0]), self._column
            if self.items is not None and not query.problem:
                query, field = _with_items(query, self.items, values[1]), self.items.name
            if query.problem and self._on_bad_row == "stop":
                advice = "correct the row, or pass --on-bad-row skip to leave it unanswered"
                raise InvalidData(self.path, f"{query.problem}; {advice}", line=line, field=field)
            yield query

    def survey(self) -> Survey:
        """Read the whole file once; raises `InvalidData` for what is wrong, or if it is empty."""
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


def _with_items(query: FileQuery, column: ItemsColumn, cell: Any) -> FileQuery:
    """The query with the items of its row, or what is wrong with them."""
    try:
        return replace(query, items=column.items_of(cell))
    except ValueError as error:
        return replace(query, problem=str(error))

"""The queries of a file, each checked by the same rule as those of `POST /predict`."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from service.core.errors import InvalidConfig, InvalidData
from service.core.tables.columns import ending_of, read_columns
from service.core.tables.separated import DelimiterOption, delimiter_character
from service.http.request_models.texts import text_type
from service.settings import Limits

OnBadRow = Literal["stop", "skip"]
ONLY_COLUMN = "text"  # of a text file, in messages


@dataclass(frozen=True, kw_only=True, slots=True)
class FileQuery:
    """The query of one row, or why it cannot be answered (`problem`)."""

    text: str
    problem: str = ""


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

    def __iter__(self) -> Iterator[FileQuery]:
        """Yield the query of each row, in the file's order."""
        rows = read_columns(self.path, [self._column], delimiter=self._delimiter)
        for line, (value,) in rows:
            query = self._rule.check(value)
            if query.problem and self._on_bad_row == "stop":
                advice = "correct the row, or pass --on-bad-row skip to leave it unanswered"
                raise InvalidData(
                    self.path, f"{query.problem}; {advice}", line=line, field=self._column
                )
            yield query

    def survey(self) -> Survey:
        """Read the whole file once; raises `InvalidData` for what is wrong, or if it is empty."""
        digest, rows, skipped = hashlib.sha256(), 0, 0
        for query in self:
            text = query.text.encode()
            digest.update(len(text).to_bytes(4, "little") + text + query.problem.encode())
            rows, skipped = rows + 1, skipped + bool(query.problem)
        if not rows:
            raise InvalidData(self.path, "holds no query; give a file with at least one row")
        return Survey(rows=rows, skipped=skipped, digest=digest.hexdigest())

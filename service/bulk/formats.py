"""The formats of answers: JSON lines, CSV and parquet.

    .jsonl    a line for each query: an entry of `results` of `POST /predict`; with "problem" where
              the row was skipped
    .csv      a line for each keyword: row, query, rank, id, text, score, novel; a single line
              without a rank where a query has no keyword
    .parquet  a row for each query: query, keywords (a list of id, text, score, novel), problem

Answers are written in parts, which are joined to one file at the end.
"""

from __future__ import annotations

import csv
import io
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import orjson

from service.bulk.query_file import FileQuery
from service.core.errors import InvalidConfig, MissingExtra
from service.http.answers import ResultAnswer

CSV_COLUMNS = ("row", "query", "rank", "id", "text", "score", "novel")


@dataclass(frozen=True, kw_only=True)
class AnsweredPart:
    """Queries that follow one another in the input, the first one's row from 1, and the answers."""

    first_row: int
    queries: Sequence[FileQuery]
    results: Mapping[FileQuery, ResultAnswer]  # not of queries that have a problem


class Format(Protocol):
    """Writes answers."""

    def part(self, answered: AnsweredPart) -> bytes:
        """The content of a part's file."""
        ...

    def join(self, parts: Iterable[Path], target: Path) -> None:
        """Write the parts, in this order, to `target` as one file."""
        ...


class JsonLines:
    """One JSON object a query, as HTTP answers it."""

    def part(self, answered: AnsweredPart) -> bytes:
        """The lines of a part."""
        lines = io.BytesIO()
        for query in answered.queries:
            document = _document(query, answered.results)
            lines.write(orjson.dumps(document, option=orjson.OPT_APPEND_NEWLINE))
        return lines.getvalue()

    def join(self, parts: Iterable[Path], target: Path) -> None:
        """One part after the other."""
        with target.open("wb") as joined:
            _append(joined, parts)


class CsvLines:
    """One line a keyword."""

    def part(self, answered: AnsweredPart) -> bytes:
        """The lines of a part, without the header."""
        lines = io.StringIO()
        writer = csv.writer(lines, lineterminator="\n")
        for row, query in enumerate(answered.queries, start=answered.first_row):
            keywords = _document(query, answered.results)["keywords"]
            if not keywords:
                writer.writerow((row, query.text, "", "", "", "", ""))
            for rank, keyword in enumerate(keywords, start=1):
                score, novel = repr(keyword["score"]), str(keyword["novel"]).lower()
                shown = (keyword["id"], keyword["text"], score, novel)
                writer.writerow((row, query.text, rank, *shown))
        return lines.getvalue().encode()

    def join(self, parts: Iterable[Path], target: Path) -> None:
        """The header, then one part after the other."""
        with target.open("wb") as joined:
            joined.write(f"{','.join(CSV_COLUMNS)}\n".encode())
            _append(joined, parts)


class Parquet:
    """One row a query."""

    def __init__(self) -> None:
        """Raise `MissingExtra` where pyarrow is not installed."""
        try:
            import pyarrow
            from pyarrow import parquet
        except ModuleNotFoundError as error:
            raise MissingExtra("pyarrow", extra="bulk") from error
        self._arrow, self._parquet = pyarrow, parquet
        text, number, truth = pyarrow.string(), pyarrow.float64(), pyarrow.bool_()
        keyword = pyarrow.struct(
            [("id", text), ("text", text), ("score", number), ("novel", truth)]
        )
        self._schema = pyarrow.schema(
            [("query", text), ("keywords", pyarrow.list_(keyword)), ("problem", text)]
        )

    def part(self, answered: AnsweredPart) -> bytes:
        """A parquet file of the part."""
        rows = [
            {"problem": None, **_document(query, answered.results)} for query in answered.queries
        ]
        content = self._arrow.BufferOutputStream()
        table = self._arrow.Table.from_pylist(rows, schema=self._schema)
        self._parquet.write_table(table, content)
        return bytes(content.getvalue())

    def join(self, parts: Iterable[Path], target: Path) -> None:
        """The rows of all parts in one file, a row group for each part."""
        with self._parquet.ParquetWriter(target, self._schema) as joined:
            for part in parts:
                joined.write_table(self._parquet.read_table(part, schema=self._schema))


def format_of(path: Path, *, explain: bool) -> Format:
    """The format that a file's ending names; raises `InvalidConfig` for another ending."""
    if path.suffix not in (".jsonl", ".csv", ".parquet"):
        raise InvalidConfig(f"{path}: unknown ending; expected .jsonl, .csv or .parquet")
    if path.suffix == ".jsonl":
        return JsonLines()
    if explain:
        raise InvalidConfig(f"{path} has no place for evidence: name a .jsonl file for --explain")
    return CsvLines() if path.suffix == ".csv" else Parquet()


def _document(query: FileQuery, results: Mapping[FileQuery, ResultAnswer]) -> Any:
    """The result of a query, or why it has none."""
    if query.problem:
        return {"query": query.text, "keywords": [], "problem": query.problem}
    return results[query]


def _append(target: Any, parts: Iterable[Path]) -> None:
    for part in parts:
        with part.open("rb") as content:
            shutil.copyfileobj(content, target)

"""The formats of answers: JSON lines, CSV and parquet.

    .jsonl    a line for each query: an entry of `results` of `POST /predict`; with "problem" if
              the row was skipped
    .csv      a line for each keyword: row, query, rank, id, text, score, novel, score_kind; a
              single line without a rank if a query has no keyword; then searched, match and
              confidence
    .parquet  a row for each query: query, keywords (a list of id, text, score, novel, match,
              confidence), problem, score_kind, searched

Answers are written in parts, which are joined to one file at the end.
"""

from __future__ import annotations

import io
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import orjson

from service.bulk.query_file import FileQuery
from service.core.errors import InvalidConfig, MissingExtra
from service.core.prediction.answers import ResultAnswer
from service.core.tables.separated import csv_writer

# A spreadsheet treats a cell that begins with one of these as a formula.
FORMULA_BEGINS = ("=", "+", "-", "@", "\t", "\r")
CSV_COLUMNS = (
    "row",
    "query",
    "rank",
    "id",
    "text",
    "score",
    "novel",
    "score_kind",
    "searched",
    "match",
    "confidence",
)


@dataclass(frozen=True, kw_only=True)
class AnsweredPart:
    """Answers to consecutive queries of the input; `first_row` counts from 1."""

    first_row: int
    queries: Sequence[FileQuery]
    results: Mapping[FileQuery, ResultAnswer]  # of queries without a problem

    def documents(self) -> Iterator[Any]:
        """Yield each query's result as a document, or its problem."""
        for query in self.queries:
            if query.problem:
                yield {"query": query.text, "keywords": [], "problem": query.problem}
            else:
                yield self.results[query]


class JsonLines:
    """One JSON object per query, as HTTP answers it."""

    header: ClassVar[bytes] = b""

    def part(self, answered: AnsweredPart) -> bytes:
        """Return the lines of a part."""
        newline = orjson.OPT_APPEND_NEWLINE
        return b"".join(orjson.dumps(each, option=newline) for each in answered.documents())

    def join(self, parts: Iterable[Path], target: Path) -> None:
        """Write the header and the parts, in this order, to `target`."""
        with target.open("wb") as joined:
            joined.write(self.header)
            for part in parts:
                with part.open("rb") as content:
                    shutil.copyfileobj(content, joined)


class CsvLines(JsonLines):
    """One line per keyword.

    With `escape_formulas`, a text that a spreadsheet would treat as a formula gets an apostrophe
    before it: `=1+1` becomes `'=1+1`.
    """

    header = f"{','.join(CSV_COLUMNS)}\n".encode()

    def __init__(self, *, escape_formulas: bool = False) -> None:
        self._escape = escape_formulas

    def part(self, answered: AnsweredPart) -> bytes:
        """Return the lines of a part."""
        lines = io.StringIO()
        writer = csv_writer(lines)
        for row, document in enumerate(answered.documents(), start=answered.first_row):
            query, keywords = self._cell(document["query"]), document["keywords"]
            kind = document.get("score_kind", "")
            searched = self._cell(document.get("searched", ""))
            if not keywords:
                writer.writerow((row, query, "", "", "", "", "", kind, searched, "", ""))
            for rank, keyword in enumerate(keywords, start=1):
                score, novel = repr(keyword["score"]), str(keyword["novel"]).lower()
                texts = (self._cell(keyword["id"]), self._cell(keyword["text"]))
                sure = keyword.get("confidence")
                last = (kind, searched, keyword["match"], "" if sure is None else repr(sure))
                writer.writerow((row, query, rank, *texts, score, novel, *last))
        return lines.getvalue().encode()

    def _cell(self, text: str) -> str:
        return f"'{text}" if self._escape and text.startswith(FORMULA_BEGINS) else text


class Parquet:
    """One row per query."""

    def __init__(self) -> None:
        """Raise `MissingExtra` if pyarrow is not installed."""
        try:
            import pyarrow
            from pyarrow import parquet
        except ModuleNotFoundError as error:
            raise MissingExtra("pyarrow", extra="bulk") from error
        self._arrow, self._parquet = pyarrow, parquet
        text, number, truth = pyarrow.string(), pyarrow.float64(), pyarrow.bool_()
        keyword = pyarrow.struct(
            [
                ("id", text),
                ("text", text),
                ("score", number),
                ("novel", truth),
                ("match", text),
                ("confidence", number),
            ]
        )
        self._schema = pyarrow.schema(
            [
                ("query", text),
                ("keywords", pyarrow.list_(keyword)),
                ("problem", text),
                ("score_kind", text),
                ("searched", text),
            ]
        )

    def part(self, answered: AnsweredPart) -> bytes:
        """Return the part as a parquet file."""
        rows = [{"problem": None, **document} for document in answered.documents()]
        content = self._arrow.BufferOutputStream()
        table = self._arrow.Table.from_pylist(rows, schema=self._schema)
        self._parquet.write_table(table, content)
        return bytes(content.getvalue())

    def join(self, parts: Iterable[Path], target: Path) -> None:
        """Write the rows of all parts to `target`, a row group for each part."""
        with self._parquet.ParquetWriter(target, self._schema) as joined:
            for part in parts:
                joined.write_table(self._parquet.read_table(part, schema=self._schema))


Format = JsonLines | Parquet


def format_of(path: Path, *, explain: bool, escape_formulas: bool = False) -> Format:
    """Return the format for a file's ending.

    Raises `InvalidConfig` for another ending, and for an option that the format does not support.
    """
    if path.suffix not in (".jsonl", ".csv", ".parquet"):
        raise InvalidConfig(f"{path}: unknown ending; expected .jsonl, .csv or .parquet")
    if escape_formulas and path.suffix != ".csv":
        raise InvalidConfig(f"{path} is no spreadsheet: name a .csv file for --escape-formulas")
    if path.suffix == ".jsonl":
        return JsonLines()
    if explain:
        raise InvalidConfig(f"{path} has no place for evidence: name a .jsonl file for --explain")
    return CsvLines(escape_formulas=escape_formulas) if path.suffix == ".csv" else Parquet()

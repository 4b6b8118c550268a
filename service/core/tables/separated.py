"""Reads and writes rows of csv and tsv files.

.csv   comma, semicolon, tab or pipe between fields, which may be quoted
.tsv   tab between fields; no quoting: `"exact phrase"` keeps its quotes
"""

from __future__ import annotations

import csv
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

from service.core.errors import InvalidData
from service.core.files.lines import MOST_BYTES, OnBadRow, numbered_lines

DELIMITERS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "pipe"}
DelimiterOption = Literal[",", ";", "tab", "|"]  # as users write them
SHOWN_CHARACTERS = 300  # of the column names in a message
MOST_LINES = 2**16  # per row; its characters are limited to `MOST_BYTES` and one line more
TOO_LONG = "the row is too long"  # the message of `_Lines`
# For messages of `csv.Error` with these words: what is wrong, and what to do.
HINTS = {
    "unexpected end of data": "the quotation mark that opens a field is never closed; close it, or"
    " double it if it is part of the text",
    "expected after": "a field goes on after its closing quotation mark; double each quotation"
    " mark that is part of the text",
    "new-line character": "a line ends in a carriage return alone; end lines in a line feed, or in"
    " a carriage return and a line feed",
    TOO_LONG: f"it has over {MOST_LINES:,} lines or {MOST_BYTES:,} characters; either the quotation"
    " mark that opens a field is not closed, or a field is too long",
}


def delimiter_character(option: DelimiterOption | None) -> str | None:
    """Return the delimiter as it is written in the file."""
    return "\t" if option == "tab" else option


def sniff_delimiter(path: Path, columns: Sequence[str]) -> str:
    """Return the delimiter with which a csv file's header has the most of the wanted `columns`.

    If several are equal, the one with more fields wins, and then the comma.
    """
    _, header = next(numbered_lines(path), (1, ""))

    def fits(delimiter: str) -> tuple[int, int]:
        try:
            names = [name.strip() for name in next(_reader([header], delimiter=delimiter), [])]
        except csv.Error:  # the error appears again when the file is read
            return 0, 0
        return sum(name in names for name in columns), len(names)

    return max(DELIMITERS, key=fits)


def read_separated(
    path: Path, columns: Sequence[str], *, delimiter: str, quoted: bool = True, on_bad: OnBadRow
) -> Iterator[tuple[int, list[Any]]]:
    """Yield (first line, values of `columns`) of each row; `quoted` fields may span lines."""
    lines = _Lines(path)
    # strict: a stray quote is an error. Otherwise it would turn all rows after it into one field.
    form = {"strict": True} if quoted else {"quoting": csv.QUOTE_NONE}
    reader = _reader(lines, delimiter=delimiter, **form)
    header = _read_header(path, lines, reader)
    positions = check_columns(header, columns, path, delimiter=delimiter)
    while True:
        lines.begin_row()
        try:
            values = next(reader, None)
        except csv.Error as error:
            on_bad(_invalid_row(path, error, line=lines.row[0].number))
            # A stray quote swallows the lines after it, which may be good rows.
            lines.read_again_after_the_first()
            continue
        if values is None:
            return
        damage = next((line.damage for line in lines.row if line.damage), None)
        if damage:
            on_bad(damage)
        elif values and len(values) != len(header):
            message = f"{len(values)} fields, but the header has {len(header)}"
            if len(values) > len(header):
                message += "; a field that holds the delimiter must be quoted"
            on_bad(InvalidData(path, message, line=lines.row[0].number))
        elif values:  # blank lines are skipped
            yield lines.row[0].number, [values[position] for position in positions]


def _reader(lines: Iterable[str], **form: Any) -> Any:
    """Return a reader whose fields may be as long as `_Lines` allows, in any column."""
    csv.field_size_limit(2 * MOST_BYTES)  # for the whole process: there is no other limit
    return csv.reader(lines, **form)


def csv_writer(file: IO[str]) -> Any:
    """Return a `csv.writer` whose rows end in a line feed and can be read again.

    Before Python 3.13, `csv` does not quote a carriage return unless it is part of the line end.
    """
    return csv.writer(_LineFeeds(file), lineterminator="\r\n")


class _LineFeeds:
    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def write(self, row: str) -> int:
        return self._file.write(row.removesuffix("\r\n") + "\n")


def check_columns(
    header: Sequence[str], columns: Sequence[str], path: Path, *, delimiter: str = ""
) -> list[int]:
    """Return the place of each of `columns`; raises `InvalidData` if one is missing or repeated."""
    for name in columns:
        if name not in header:
            raise missing_column(path, name, header, line=1, delimiter=delimiter)
        if header.count(name) > 1:
            message = f"occurs more than once; the columns are {_shown(header)}; rename one"
            raise InvalidData(path, message, line=1, field=name)
    return [header.index(name) for name in columns]


def missing_column(
    path: Path, name: str, known: Sequence[str], *, line: int, delimiter: str = ""
) -> InvalidData:
    """Return the error for a column that is missing in a header, or in a row with its own names."""
    read = f" (line 1 must name them; delimiter: {DELIMITERS[delimiter]})" if delimiter else ""
    message = f"there is no such column; the columns are {_shown(known)}{read}"
    return InvalidData(path, message, line=line, field=name)


def _read_header(path: Path, lines: _Lines, reader: Any) -> list[str]:
    expected = "expected a header line with the columns' names"
    try:
        values = next(reader, None)
    except csv.Error as error:
        raise _invalid_row(path, error, line=1) from error
    if values is None:
        raise InvalidData(path, f"is empty; {expected}")
    for line in lines.row:
        if line.damage:
            raise line.damage
    if not values:
        raise InvalidData(path, f"is blank; {expected}", line=1)
    return [name.strip() for name in values]


def _invalid_row(path: Path, error: csv.Error, *, line: int) -> InvalidData:
    wrong = next((hint for words, hint in HINTS.items() if words in str(error)), str(error))
    return InvalidData(path, f"not a valid row: {wrong}", line=line)


def _shown(names: Sequence[str]) -> str:
    joined = ", ".join(names) or "none"
    return joined if len(joined) <= SHOWN_CHARACTERS else f"{joined[:SHOWN_CHARACTERS]}…"


class _Line(NamedTuple):
    number: int
    text: str
    damage: InvalidData | None  # set if the line is not UTF-8 text


class _Lines:
    """The lines that `csv.reader` reads. `row` holds the lines of the current row."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._damaged: list[InvalidData] = []
        self._source = numbered_lines(path, self._damaged.append)
        self._again: deque[_Line] = deque()
        self._characters = 0  # of the current row
        self.row: list[_Line] = []

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = self._again.popleft() if self._again else self._next()
        self.row.append(line)
        self._characters += len(line.text)
        if len(self.row) > 1 and (len(self.row) > MOST_LINES or self._characters > MOST_BYTES):
            raise csv.Error(TOO_LONG)
        return f"{line.text}\n"

    def _next(self) -> _Line:
        number, text = next(self._source)
        damage = self._damaged.pop() if self._damaged else None
        if damage is None and "\0" in text:  # common in UTF-16
            message = "holds a NUL character; save the file as text in UTF-8"
            damage = InvalidData(self._path, message, line=number)
        return _Line(number, text, damage)

    def begin_row(self) -> None:
        """Forget the lines of the last row."""
        self.row.clear()
        self._characters = 0

    def read_again_after_the_first(self) -> None:
        """Return the current row's lines, except the first, to the input, to be read again."""
        self._again.extendleft(reversed(self.row[1:]))

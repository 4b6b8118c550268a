"""Rows of csv and tsv files.

.csv   comma, semicolon, tab or pipe between fields, which may be quoted
.tsv   tab between fields; no quoting: `"exact phrase"` keeps its quotes
"""

from __future__ import annotations

import csv
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from service.core.errors import InvalidData
from service.core.files.bad_rows import OnBadRow
from service.core.files.lines import numbered_lines

DELIMITERS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "pipe"}
DelimiterOption = Literal[",", ";", "tab", "|"]  # as users write it
SHOWN_CHARACTERS = 300  # of the columns' names in a message


def delimiter_character(option: DelimiterOption | None) -> str | None:
    """The delimiter as it stands in the file."""
    return "\t" if option == "tab" else option


def sniff_delimiter(path: Path, columns: Sequence[str]) -> str:
    """The delimiter that splits a csv file's header into the most of the wanted `columns`.

    Where that decides nothing it is the one that gives the most fields, and the comma before all
    others.
    """
    _, header = next(numbered_lines(path), (1, ""))

    def fits(delimiter: str) -> tuple[int, int]:
        try:
            names = _header(next(csv.reader([header], delimiter=delimiter), []))
        except csv.Error:  # reading the file says what is wrong
            return 0, 0
        return sum(name in names for name in columns), len(names)

    return max(DELIMITERS, key=fits)


def read_csv(
    path: Path, columns: Sequence[str], *, delimiter: str, on_bad: OnBadRow
) -> Iterator[tuple[int, list[Any]]]:
    """Yield (line, values of `columns`); a row may span lines, and its first one counts."""
    lines = _Lines(path)
    # strict: a stray quote is an error; otherwise the rest of the table would become one field.
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    return _read(path, columns, lines, reader, on_bad, delimiter)


def read_tsv(
    path: Path, columns: Sequence[str], *, on_bad: OnBadRow
) -> Iterator[tuple[int, list[Any]]]:
    """Yield (line, values of `columns`)."""
    lines = _Lines(path)
    reader = csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
    return _read(path, columns, lines, reader, on_bad, "\t")


def check_columns(
    header: Sequence[str], columns: Sequence[str], path: Path, *, delimiter: str = ""
) -> list[int]:
    """Where each of `columns` stands; `InvalidData` for one that is missing or repeated."""
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
    """The error about a column that a header, or a row with names of its own, does not have."""
    read = f" (line 1 must name them; delimiter: {DELIMITERS[delimiter]})" if delimiter else ""
    message = f"there is no such column; the columns are {_shown(known)}{read}"
    return InvalidData(path, message, line=line, field=name)


def _read(
    path: Path,
    columns: Sequence[str],
    lines: _Lines,
    reader: Any,
    on_bad: OnBadRow,
    delimiter: str,
) -> Iterator[tuple[int, list[Any]]]:
    header = _read_header(path, lines, reader)
    positions = check_columns(header, columns, path, delimiter=delimiter)
    while True:
        lines.row.clear()
        try:
            values = next(reader, None)
        except csv.Error as error:
            on_bad(_invalid_row(path, error, line=lines.row[0].number))
            # A stray quote takes in the lines behind it, and these may be good rows.
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
    return _header(values)


def _invalid_row(path: Path, error: csv.Error, *, line: int) -> InvalidData:
    hint = "every quotation mark that is opened must be closed"
    if "new-line character" in str(error):
        hint = "lines must end in a line feed, or a carriage return and a line feed"
    return InvalidData(path, f"not a valid row: {error}; {hint}", line=line)


def _header(values: Sequence[str]) -> list[str]:
    return [name.strip() for name in values]


def _shown(names: Sequence[str]) -> str:
    joined = ", ".join(names) or "none"
    return joined if len(joined) <= SHOWN_CHARACTERS else f"{joined[:SHOWN_CHARACTERS]}…"


class _Line(NamedTuple):
    number: int
    text: str
    damage: InvalidData | None  # set where the line is no text in UTF-8


class _Lines:
    """The lines that `csv.reader` reads; `row` holds those of the current row."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._damaged: list[InvalidData] = []
        self._source = numbered_lines(path, self._damaged.append)
        self._again: deque[_Line] = deque()
        self.row: list[_Line] = []

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = self._again.popleft() if self._again else self._next()
        self.row.append(line)
        return f"{line.text}\n"

    def _next(self) -> _Line:
        number, text = next(self._source)
        damage = self._damaged.pop() if self._damaged else None
        if damage is None and "\0" in text:  # in UTF-16, every second byte
            message = "holds a NUL character; save the file as text in UTF-8"
            damage = InvalidData(self._path, message, line=number)
        return _Line(number, text, damage)

    def read_again_after_the_first(self) -> None:
        """Give the lines of the current row out anew, without its first one."""
        self._again.extendleft(reversed(self.row[1:]))

"""Rows of csv and tsv files.

.csv   comma, semicolon, tab or pipe between fields, which may be quoted
.tsv   tab between fields; no quoting: `"exact phrase"` keeps its quotes
"""

from __future__ import annotations

import csv
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from service.core.errors import InvalidData
from training.datasets.bad_rows import OnBadRow
from training.datasets.lines import numbered_lines

DELIMITERS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "pipe"}


def sniff_delimiter(path: Path, columns: Sequence[str]) -> str:
    """The delimiter that splits a csv file's header into the most of the wanted `columns`.

    Where that decides nothing it is the one that gives the most fields, and the comma before all
    others.
    """
    _, header = next(numbered_lines(path), (1, ""))

    def fits(delimiter: str) -> tuple[int, int]:
        names = _header(next(csv.reader([header], delimiter=delimiter), []))
        return sum(name in names for name in columns), len(names)

    return max(DELIMITERS, key=fits)


def read_csv(
    path: Path, columns: Sequence[str], *, delimiter: str, on_bad: OnBadRow
) -> Iterator[tuple[int, list[Any]]]:
    """Yield (line, values of `columns`); a row may span lines, and its first one counts."""
    lines = _Lines(path)
    # strict: a stray quote is an error; otherwise the rest of the table would become one field.
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    return _read(path, columns, lines, reader, on_bad)


def read_tsv(
    path: Path, columns: Sequence[str], *, on_bad: OnBadRow
) -> Iterator[tuple[int, list[Any]]]:
    """Yield (line, values of `columns`)."""
    lines = _Lines(path)
    reader = csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
    return _read(path, columns, lines, reader, on_bad)


def column_positions(header: Sequence[str], columns: Sequence[str], path: Path) -> list[int]:
    """Where each of `columns` stands; `InvalidData` for one that is missing or repeated."""
    for name in columns:
        if header.count(name) != 1:
            problem = "is missing" if name not in header else "occurs more than once"
            message = f"{problem}; the columns are {', '.join(header)}"
            raise InvalidData(path, message, line=1, field=name)
    return [header.index(name) for name in columns]


def _read(
    path: Path, columns: Sequence[str], lines: _Lines, reader: Any, on_bad: OnBadRow
) -> Iterator[tuple[int, list[Any]]]:
    header: list[str] | None = None
    positions: list[int] = []
    while True:
        lines.row.clear()
        try:
            values = next(reader, None)
        except csv.Error as error:
            on_bad(InvalidData(path, f"not a valid row: {error}", line=lines.row[0].number))
            # A stray quote takes in the lines behind it, and these may be good rows.
            lines.read_again_after_the_first()
            continue
        if values is None:
            return
        damage = next((line.damage for line in lines.row if line.damage), None)
        if header is None:
            if damage:
                raise damage
            header = _header(values)
            positions = column_positions(header, columns, path)
        elif damage:
            on_bad(damage)
        elif values and len(values) != len(header):
            message = f"{len(values)} fields, but the header has {len(header)}"
            on_bad(InvalidData(path, message, line=lines.row[0].number))
        elif values:  # blank lines are skipped
            yield lines.row[0].number, [values[position] for position in positions]


def _header(values: Sequence[str]) -> list[str]:
    return [name.strip() for name in values]


class _Line(NamedTuple):
    number: int
    text: str
    damage: InvalidData | None  # set where the line is not UTF-8


class _Lines:
    """The lines that `csv.reader` reads; `row` holds those of the current row."""

    def __init__(self, path: Path) -> None:
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
        return _Line(number, text, self._damaged.pop() if self._damaged else None)

    def read_again_after_the_first(self) -> None:
        """Give the lines of the current row out anew, without its first one."""
        self._again.extendleft(reversed(self.row[1:]))

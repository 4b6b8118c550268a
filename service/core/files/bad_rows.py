"""What happens at a bad row of a table: reading stops, or the row is rejected and reading goes on.

A reader calls its `on_bad` with the error. If that returns, the reader leaves the row out.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from typing import NamedTuple

from service.core.errors import InvalidData

OnBadRow = Callable[[InvalidData], None]


def stop(error: InvalidData) -> None:
    """Raise the error: the first bad row ends everything."""
    raise error


class CountedBadRows:
    """Passes bad rows on, and counts them."""

    def __init__(self, on_bad: OnBadRow) -> None:
        """Pass each error to `on_bad`."""
        self._on_bad = on_bad
        self.count = 0
        self.first = ""  # the message about the first one

    def __call__(self, error: InvalidData) -> None:
        """Count the error, and pass it on."""
        self.first = self.first or str(error)
        self.count += 1
        self._on_bad(error)


class RejectedRow(NamedTuple):
    """A row that was left out: its line, the column (empty: the whole row), and why."""

    line: int
    column: str
    reason: str

    def __str__(self) -> str:
        """The row as `LINE: COLUMN: REASON`."""
        return f"{self.line}: {self.column + ': ' if self.column else ''}{self.reason}"


class Rejects:
    """Collects bad rows, as an `OnBadRow` that never raises."""

    def __init__(self) -> None:
        """No row was rejected yet."""
        self.rows: list[RejectedRow] = []

    def __call__(self, error: InvalidData) -> None:
        """Keep what the error says."""
        # Without the exception itself, which would keep its traceback's frames alive.
        self.rows.append(RejectedRow(error.line or 0, error.field, error.reason))

    def __len__(self) -> int:
        """How many rows were rejected."""
        return len(self.rows)

    def as_csv(self) -> bytes:
        """A table with one row for each bad row, and a header line."""
        content = io.StringIO()
        writer = csv.writer(content, lineterminator="\n")
        writer.writerow(RejectedRow._fields)
        writer.writerows(self.rows)
        return content.getvalue().encode()

"""Numbered lines of a text file, plain or gzip. Errors name the file and the line.

A line ends only at a line feed, not at U+2028 as in `str.splitlines`. A carriage return before it
is dropped. For each bad line or bad table row, a reader calls its `on_bad` with the error. If that
call returns, the reader leaves the row out.
"""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

import orjson

from service.core.errors import InvalidData

OnBadRow = Callable[[InvalidData], None]
MOST_BYTES = 2**24  # the longest line: a line without end must not fill the memory


def stop(error: InvalidData) -> None:
    """Raise the error, so that reading stops at the first bad row."""
    raise error


class CountedBadRows:
    """Passes bad rows on to `on_bad` and counts them. `first` is the message of the first one."""

    def __init__(self, on_bad: OnBadRow) -> None:
        """Start with a count of 0."""
        self._on_bad, self.count, self.first = on_bad, 0, ""

    def __call__(self, error: InvalidData) -> None:
        """Count the error, and pass it on."""
        self.first = self.first or str(error)
        self.count += 1
        self._on_bad(error)


class RejectedRow(NamedTuple):
    """A row that was left out: its line, its column ("" for the whole row), and the reason."""

    line: int
    column: str
    reason: str

    def __str__(self) -> str:
        """Return the row as `LINE: COLUMN: REASON`."""
        return f"{self.line}: {self.column + ': ' if self.column else ''}{self.reason}"


class Rejects:
    """Collects bad rows, as an `OnBadRow` that never raises."""

    def __init__(self) -> None:
        """Start without rejected rows."""
        self.rows: list[RejectedRow] = []
        self.files: list[Path] = []  # of each row

    def __call__(self, error: InvalidData) -> None:
        """Keep what the error says."""
        # The exception itself is not kept: its traceback would keep frames alive.
        self.rows.append(RejectedRow(error.line or 0, error.field, error.reason))
        self.files.append(error.path)

    def __len__(self) -> int:
        """Return how many rows were rejected."""
        return len(self.rows)

    def as_csv(self, *, files: bool = False) -> bytes:
        """Return a table with a header line and one row for each bad row; `files` adds its file."""
        content = io.StringIO()
        writer = csv.writer(content, lineterminator="\n")
        writer.writerow((*(["file"] if files else []), *RejectedRow._fields))
        for file, row in zip(self.files, self.rows, strict=True):
            writer.writerow((*([file] if files else []), *row))
        return content.getvalue().encode()


def find(folder: Path, name: str) -> Path | None:
    """Return the file `name` or `name`.gz in `folder`, or None; raises `InvalidData` for both."""
    plain, packed = folder / name, folder / f"{name}.gz"
    if plain.exists() and packed.exists():
        raise InvalidData(folder, f"holds both {plain.name} and {packed.name}; remove one")
    return plain if plain.exists() else packed if packed.exists() else None


def numbered_lines(path: Path, on_bad: OnBadRow = stop) -> Iterator[tuple[int, str]]:
    """Yield (line number from 1, text without its line end), without a byte order mark.

    `on_bad` is called for a line that is not UTF-8 or exceeds `MOST_BYTES`. If it does not raise,
    the line is yielded with replacement characters, or empty if it was too long. Raises
    `InvalidData` if the file cannot be opened, or if its gzip stream is damaged or cut short.
    """
    number = 0
    try:
        with _open(path) as stream:
            for number, raw in enumerate(_bounded_lines(stream), start=1):
                if raw is None:
                    reason = f"is longer than {MOST_BYTES:,} bytes; is this a file of text lines?"
                    on_bad(InvalidData(path, reason, line=number))
                yield number, _text(raw or b"", path=path, line=number, on_bad=on_bad)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InvalidData(
            path, "the gzip stream is damaged or cut short; copy the file again", line=number + 1
        ) from error
    except OSError as error:
        raise InvalidData(path, f"cannot be read: {error.strerror or error}") from error


def good_lines(path: Path, on_bad: OnBadRow) -> Iterator[tuple[int, str]]:
    """Yield what `numbered_lines` yields, without the bad lines."""
    damaged: list[InvalidData] = []
    for line, text in numbered_lines(path, damaged.append):
        if damaged:
            on_bad(damaged.pop())
        else:
            yield line, text


def json_rows(
    path: Path, on_bad: OnBadRow = stop, *, skip_blank: bool = False
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line number, object) for each line of a file with one JSON object per line.

    `on_bad` is called for any other line, which is then left out. With `skip_blank`, blank lines
    are left out without a call.
    """
    for line, text in good_lines(path, on_bad):
        if skip_blank and not text.strip():
            continue
        try:
            row = orjson.loads(text)
        except orjson.JSONDecodeError as error:
            message = f"not valid JSON: {error}; expected one JSON object a line"
            on_bad(InvalidData(path, message, line=line))
            continue
        if isinstance(row, dict):
            yield line, row
        else:
            message = f"expected a JSON object, not {type(row).__name__}: one a line"
            on_bad(InvalidData(path, message, line=line))


def _open(path: Path) -> BinaryIO:
    # GzipFile can be read like a binary file, but its type stub does not say so.
    return cast(BinaryIO, gzip.open(path)) if path.suffix == ".gz" else path.open("rb")


def _bounded_lines(stream: BinaryIO) -> Iterator[bytes | None]:
    """Yield each line, or None if it is too long."""
    while raw := stream.readline(MOST_BYTES + 1):
        if len(raw) <= MOST_BYTES:
            yield raw
            continue
        while raw and not raw.endswith(b"\n"):
            raw = stream.readline(MOST_BYTES)
        yield None


def _text(raw: bytes, *, path: Path, line: int, on_bad: OnBadRow) -> str:
    encoding = "utf-8-sig" if line == 1 else "utf-8"
    try:
        text = raw.decode(encoding)
    except UnicodeDecodeError as error:
        where = f"byte {error.start + 1} of the line"
        on_bad(InvalidData(path, f"not valid UTF-8 at {where}; save the file as UTF-8", line=line))
        text = raw.decode(encoding, errors="replace")
    return text.removesuffix("\n").removesuffix("\r")


def write_lines(path: Path, lines: Iterable[bytes]) -> None:
    """Write `lines`, each with a line feed; as gzip without a timestamp if `path` ends in .gz."""
    with path.open("wb") as raw:
        if path.suffix != ".gz":
            raw.writelines(line + b"\n" for line in lines)
            return
        with gzip.GzipFile(filename="", fileobj=raw, mode="wb", compresslevel=6, mtime=0) as packed:
            packed.writelines(line + b"\n" for line in lines)

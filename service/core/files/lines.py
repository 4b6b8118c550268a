"""Numbered lines of a text file, plain or gzip; errors name file and line.

Lines end at a line feed only, and a carriage return before it is dropped. Texts may contain U+2028
and other characters at which `str.splitlines` would split.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

import orjson

from service.core.errors import InvalidData
from service.core.files.bad_rows import OnBadRow, stop


def find(folder: Path, name: str) -> Path | None:
    """Return the file `name` or `name`.gz of `folder`, or None if neither exists.

    Raises `InvalidData` if both exist, since it is unclear which one is valid.
    """
    plain, packed = folder / name, folder / f"{name}.gz"
    if plain.exists() and packed.exists():
        raise InvalidData(folder, f"holds both {plain.name} and {packed.name}; remove one")
    return plain if plain.exists() else packed if packed.exists() else None


def numbered_lines(path: Path, on_bad: OnBadRow = stop) -> Iterator[tuple[int, str]]:
    """Yield (line number from 1, text without line end); a byte order mark is dropped.

    `on_bad` is called for a line that is not UTF-8. If it does not raise, the line is yielded with
    replacement characters. Raises `InvalidData` for a file that cannot be opened and a gzip stream
    that is damaged or cut short.
    """
    number = 0
    try:
        with _open(path) as stream:
            for number, raw in enumerate(stream, start=1):
                yield number, _text(raw, path=path, line=number, on_bad=on_bad)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InvalidData(
            path, "the gzip stream is damaged or cut short; copy the file again", line=number + 1
        ) from error
    except OSError as error:
        raise InvalidData(path, f"cannot be read: {error.strerror or error}") from error


def json_rows(
    path: Path, on_bad: OnBadRow = stop, *, skip_blank: bool = False
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line number, object) of a file with one JSON object on each line.

    `on_bad` is called for any other line, which is then left out. Blank lines are left out without
    a word if `skip_blank`.
    """
    damaged: list[InvalidData] = []
    for line, text in numbered_lines(path, damaged.append):
        if damaged:
            on_bad(damaged.pop())
            continue
        if skip_blank and not text.strip():
            continue
        try:
            row = orjson.loads(text)
        except orjson.JSONDecodeError as error:
            on_bad(
                InvalidData(
                    path, f"not valid JSON: {error}; expected one JSON object a line", line=line
                )
            )
            continue
        if isinstance(row, dict):
            yield line, row
        else:
            message = f"expected a JSON object, not {type(row).__name__}: one a line"
            on_bad(InvalidData(path, message, line=line))


def _open(path: Path) -> BinaryIO:
    # GzipFile can be read like a binary file, which its type stub does not say.
    return cast(BinaryIO, gzip.open(path)) if path.suffix == ".gz" else path.open("rb")


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
    """Write `lines`, each with a line feed; as gzip if `path` ends in .gz.

    The same lines give the same bytes, since the gzip header has neither time nor name.
    """
    with path.open("wb") as raw:
        if path.suffix != ".gz":
            raw.writelines(line + b"\n" for line in lines)
            return
        with gzip.GzipFile(filename="", fileobj=raw, mode="wb", compresslevel=6, mtime=0) as packed:
            packed.writelines(line + b"\n" for line in lines)

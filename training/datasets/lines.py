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


def find(folder: Path, name: str) -> Path | None:
    """Return the file `name` or `name`.gz of `folder`, or None if neither exists.

    Raises `InvalidData` if both exist, since it is unclear which one is valid.
    """
    plain, packed = folder / name, folder / f"{name}.gz"
    if plain.exists() and packed.exists():
        raise InvalidData(folder, f"holds both {plain.name} and {packed.name}; remove one")
    return plain if plain.exists() else packed if packed.exists() else None


def numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line number from 1, text without line end); a byte order mark is dropped.

    Raises `InvalidData` for a file that cannot be opened, a gzip stream that is damaged or cut
    short, and bytes that are not UTF-8.
    """
    number = 0
    try:
        with _open(path) as stream:
            for number, raw in enumerate(stream, start=1):
                yield number, _text(raw, path=path, line=number)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InvalidData(
            path, "the gzip stream is damaged or cut short", line=number + 1
        ) from error
    except OSError as error:
        raise InvalidData(path, error.strerror or str(error)) from error


def json_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line number, object) of a file with one JSON object on each line."""
    for line, text in numbered_lines(path):
        try:
            row = orjson.loads(text)
        except orjson.JSONDecodeError as error:
            raise InvalidData(path, f"not valid JSON: {error}", line=line) from error
        if not isinstance(row, dict):
            raise InvalidData(path, f"expected a JSON object, not {type(row).__name__}", line=line)
        yield line, row


def _open(path: Path) -> BinaryIO:
    # GzipFile can be read like a binary file, which its type stub does not say.
    return cast(BinaryIO, gzip.open(path)) if path.suffix == ".gz" else path.open("rb")


def _text(raw: bytes, *, path: Path, line: int) -> str:
    encoding = "utf-8-sig" if line == 1 else "utf-8"
    try:
        text = raw.decode(encoding)
    except UnicodeDecodeError as error:
        where = f"byte {error.start + 1} of the line"
        raise InvalidData(path, f"not valid UTF-8 at {where}", line=line) from error
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

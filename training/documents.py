"""JSON files of training: indented, written whole, and read with errors that name the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import orjson
from pydantic import TypeAdapter, ValidationError

from service.core.errors import InvalidData, InvalidInput
from service.core.files.atomic import write_file
from service.core.wrong_values import what_is_wrong

Facts = TypeVar("Facts")


def write_json(path: Path, document: object) -> None:
    """Write a document, replacing an existing file."""
    write_file(path, orjson.dumps(document, option=orjson.OPT_INDENT_2) + b"\n")


def read_json(path: Path) -> Any:
    """Return the document in a file; raises `InvalidData`."""
    try:
        return orjson.loads(path.read_bytes())
    except OSError as error:
        raise InvalidData(path, f"cannot be read: {error.strerror or error}") from error
    except orjson.JSONDecodeError as error:
        raise InvalidData(path, f"not valid JSON: {error}") from error


def read_document(path: Path, *, format_name: str, version: int) -> dict[str, Any]:
    """Return the other fields of a document; raises `InvalidData` for another format or version."""
    document = read_json(path)
    if not isinstance(document, dict) or document.pop("format", None) != format_name:
        raise InvalidData(path, f"must be {format_name!r}", field="format")
    found = document.pop("version", None)
    if type(found) is not int or found != version:
        message = f"must be {version}, the version that this build reads, not {found!r}"
        raise InvalidData(path, message, field="version")
    return document


def checked(kind: type[Facts], document: object, *, path: Path, writer: str) -> Facts:
    """Return a document as a dataclass; raises `InvalidData`, which names the file's `writer`."""
    try:
        return TypeAdapter(kind).validate_json(orjson.dumps(document))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        message = f"is not what `{writer}` writes: {what_is_wrong(first)}"
        raise InvalidData(path, message, field=where) from error
    except InvalidInput as error:  # raised by the class itself, for values that it refuses
        raise InvalidData(path, str(error)) from error

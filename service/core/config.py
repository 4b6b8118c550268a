"""TOML -> frozen dataclasses, with errors that name the file, the key and what is allowed."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from service.core.errors import InvalidConfig

# What a settings dataclass is declared with: no unknown key, no "1" for 1.
STRICT = ConfigDict(extra="forbid", strict=True)

Count = Annotated[int, Field(ge=1)]
Natural = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]
Positive = Annotated[float, Field(gt=0.0)]

Settings = TypeVar("Settings")


def read_toml(path: Path) -> dict[str, Any]:
    """The document in a TOML file; raises `InvalidConfig` naming the file."""
    try:
        return tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidConfig(f"{path} cannot be read: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise InvalidConfig(f"{path} is not TOML: {error}") from error


def parse(kind: type[Settings], document: Mapping[str, Any], *, source: str) -> Settings:
    """Build a settings dataclass from a document; `source` says where it came from.

    Raises `InvalidConfig` naming source, key and what is allowed.
    """
    try:
        # As JSON, since strict dataclasses take no dictionaries; TOML's dates become strings.
        return TypeAdapter(kind).validate_json(json.dumps(document, default=str))
    except ValidationError as error:
        raise InvalidConfig(f"{source}: {_explain(error, kind)}") from error


def toml_value(text: str) -> Any:
    """A TOML value of a command line; what is none is a text, so that names need no quotes."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _explain(error: ValidationError, kind: type[Any]) -> str:
    """The first wrong key with its table, and what would be right."""
    first = error.errors(include_url=False)[0]
    path = [str(part) for part in first["loc"]]
    where, message = ".".join(path), first["msg"]
    if first["type"] != "unexpected_keyword_argument":
        return f"{where}: {message}"
    return f"{where} is unknown; known are {', '.join(_known(kind, path[:-1]))}"


def _known(kind: Any, path: list[str]) -> list[str]:
    """The keys of the table at `path` below a settings dataclass; "0" is a place in an array."""
    for part in path:
        kind = get_args(kind)[0] if part.isdecimal() else get_type_hints(kind).get(part)
    return [field.name for field in fields(kind)] if is_dataclass(kind) else []

"""Reads TOML into frozen dataclasses. Errors name the file, the key and the allowed values."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from service.core.errors import InvalidConfig
from service.core.wrong_values import UNKNOWN, what_is_wrong

# All settings dataclasses use this: unknown keys are errors, and so is "1" instead of 1.
STRICT = ConfigDict(extra="forbid", strict=True)

Count = Annotated[int, Field(ge=1)]
Natural = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]
Positive = Annotated[float, Field(gt=0.0)]

Settings = TypeVar("Settings")


def read_toml(path: Path) -> dict[str, Any]:
    """Return the document in a TOML file; raises `InvalidConfig`, which names the file."""
    try:
        return tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidConfig(f"{path} cannot be read: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise InvalidConfig(f"{path} is not TOML: {error}") from error


def parse(kind: type[Settings], document: Mapping[str, Any], *, source: str) -> Settings:
    """Build a settings dataclass from a document; raises `InvalidConfig`, which names `source`."""
    try:
        # Via JSON: strict validation takes no dictionary for a dataclass. Dates become texts.
        return TypeAdapter(kind).validate_json(json.dumps(document, default=str))
    except ValidationError as error:
        raise InvalidConfig(f"{source}: {_explain(error, kind)}") from error


def toml_value(text: str) -> Any:
    """Read a command-line value as TOML. If it is not TOML, it is a text: names need no quotes."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _explain(error: ValidationError, kind: type[Any]) -> str:
    """Describe the first wrong key: its path, and what is allowed there."""
    first = error.errors(include_url=False)[0]
    path = [str(part) for part in first["loc"]]
    unknown = first["type"] in UNKNOWN
    said = what_is_wrong(first, known=_known(kind, path[:-1]) if unknown else ())
    where = ".".join(path)
    if unknown:
        return f"{where} {said}"
    return f"{where}: {said}" if where else said  # no path: keys contradict each other


def _known(kind: Any, path: list[str]) -> list[str]:
    """Return the keys of the table at `path` in a settings dataclass; "0" is an array index."""
    for part in path:
        kind = get_args(kind)[0] if part.isdecimal() else get_type_hints(kind).get(part)
    return [field.name for field in fields(kind)] if is_dataclass(kind) else []

"""`dataset.json`: the description of a data set.

    format      "keymatch-dataset"
    version     1
    name        any text
    propensity  {"a": positive number, "b": positive number}
    fields      ["title"] or ["title", "content"]: the fields that a text is joined from
    source      any text; may be empty or absent
    learned     {"log": id, "version": number}: the events of a label log that the data holds, which
                `data log` wrote; absent in other data sets

A public folder has no such file. Then the caller's values and defaults hold; nothing is guessed
from a name.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson

from service.core.bundle.manifest import LearnedFacts
from service.core.errors import InvalidData, InvalidInput
from training.datasets.dataset import DEFAULT_PROPENSITY, Dataset, Propensity, check_fields

FILE = "dataset.json"
FORMAT = "keymatch-dataset"
VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Description:
    """The content of `dataset.json`."""

    name: str
    propensity: Propensity = DEFAULT_PROPENSITY
    fields: tuple[str, ...] = ("title", "content")
    source: str = ""
    learned: LearnedFacts | None = None


def read_description(folder: Path) -> Description:
    """Return the description of `folder`; without a file, defaults and the folder's name."""
    path = folder / FILE
    if not path.exists():
        return Description(name=folder.resolve().name)
    try:
        content = orjson.loads(path.read_bytes())
    except orjson.JSONDecodeError as error:
        raise InvalidData(path, f"not valid JSON: {error}") from error
    except OSError as error:
        raise InvalidData(path, error.strerror or str(error)) from error
    _check_format(content, path)
    return Description(
        name=_string(content, "name", path),
        propensity=_propensity(content, path),
        fields=_fields(content, path),
        source=_string(content, "source", path, default=""),
        learned=_learned(content, path),
    )


def description_bytes(dataset: Dataset) -> bytes:
    """The content of a file that `read_description` reads back equal."""
    content: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "name": dataset.name,
        "propensity": {"a": dataset.propensity.a, "b": dataset.propensity.b},
        "fields": list(dataset.fields),
        "source": dataset.source,
    }
    if dataset.learned is not None:
        content["learned"] = asdict(dataset.learned)
    return orjson.dumps(content, option=orjson.OPT_INDENT_2)


def _check_format(content: Any, path: Path) -> None:
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise InvalidData(path, f"must be {FORMAT!r}", field="format")
    version = content.get("version")
    if type(version) is not int or version != VERSION:
        message = f"{version!r} is unknown; this program reads version {VERSION}"
        raise InvalidData(path, message, field="version")


def _string(content: dict[str, Any], key: str, path: Path, *, default: str | None = None) -> str:
    value = content.get(key, default)
    if not isinstance(value, str):
        raise InvalidData(path, "must be a text", field=key)
    return value


def _propensity(content: dict[str, Any], path: Path) -> Propensity:
    value = content.get("propensity")
    if not isinstance(value, dict):
        raise InvalidData(path, "must be an object with a and b", field="propensity")
    for key in ("a", "b"):
        if type(value.get(key)) not in (int, float):
            raise InvalidData(path, "must be a number", field=f"propensity.{key}")
    try:
        return Propensity(a=value["a"], b=value["b"])
    except InvalidInput as error:
        raise InvalidData(path, str(error)) from error


def _learned(content: dict[str, Any], path: Path) -> LearnedFacts | None:
    value = content.get("learned")
    if value is None:
        return None
    try:
        return LearnedFacts(**value)
    except (TypeError, ValueError) as error:
        raise InvalidData(
            path, 'must be {"log": text, "version": number}', field="learned"
        ) from error


def _fields(content: dict[str, Any], path: Path) -> tuple[str, ...]:
    value = content.get("fields")
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise InvalidData(path, "must be a list of texts", field="fields")
    try:
        check_fields(tuple(value))
    except InvalidInput as error:
        raise InvalidData(path, str(error)) from error
    return tuple(value)

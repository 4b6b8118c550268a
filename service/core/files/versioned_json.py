"""The JSON file by which a folder says what it holds: a bundle's manifest, an encoder's facts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import orjson
from pydantic import TypeAdapter, ValidationError

from service.core.errors import BundleAltered, BundleMissing, BundleUnsupported

Facts = TypeVar("Facts")


def read_document(path: Path, *, kind: str, readable: Sequence[int]) -> dict[str, Any]:
    """The document at `path`, whose `format` is `kind` and whose `version` one of `readable`.

    Raises `BundleMissing`, `BundleAltered` or `BundleUnsupported`, naming the file.
    """
    try:
        document: Any = orjson.loads(path.read_bytes())
    except OSError as error:
        raise BundleMissing(f"{path} cannot be read: {error.strerror}") from error
    except orjson.JSONDecodeError as error:
        raise BundleAltered(f"{path} is not JSON: {error}") from error
    if not isinstance(document, dict) or document.get("format") != kind:
        raise BundleUnsupported(f"{path} does not describe a {kind}")
    if document.get("version") not in readable:
        raise BundleUnsupported(
            f"{path} has format version {document.get('version')!r};"
            f" this build reads {', '.join(map(str, readable))}"
        )
    return document


def checked(adapter: TypeAdapter[Facts], document: dict[str, Any], *, path: Path) -> Facts:
    """The document as its dataclass; raises `BundleAltered` naming file and key."""
    try:
        return adapter.validate_json(orjson.dumps(document))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise BundleAltered(f"{path}: {where}: {first['msg']}") from error

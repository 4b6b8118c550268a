"""JSON files that describe a folder: a bundle's `manifest.json`, an exported `encoder.json`.

Each names its `format` and its format `version`. A build reads exactly one version of each format.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import orjson
from pydantic import TypeAdapter, ValidationError

from service.core.errors import BundleAltered, BundleMissing, BundleUnsupported

Facts = TypeVar("Facts")


def read_document(path: Path, *, format_name: str, version: int) -> dict[str, Any]:
    """Return the JSON object at `path`, whose `format` and `version` must be those given.

    Raises `BundleMissing` (no such file), `BundleAltered` (not JSON) or `BundleUnsupported`
    (another format or version). Every message names the file.
    """
    try:
        document: Any = orjson.loads(path.read_bytes())
    except OSError as error:
        raise BundleMissing(f"{path} cannot be read: {error.strerror}") from error
    except orjson.JSONDecodeError as error:
        raise BundleAltered(f"{path} is not JSON: {error}") from error
    if not isinstance(document, dict) or document.get("format") != format_name:
        raise BundleUnsupported(f"{path} does not describe a {format_name}")
    if document.get("version") != version:
        raise BundleUnsupported(
            f"{path} has format version {document.get('version')!r}, but this build of Keymatch"
            f" reads only version {version}: export it again with `python -m export`"
        )
    return document


def checked(adapter: TypeAdapter[Facts], document: dict[str, Any], *, path: Path) -> Facts:
    """Return the document as a dataclass; raises `BundleAltered` naming the file and the key."""
    try:
        return adapter.validate_json(orjson.dumps(document))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise BundleAltered(f"{path}: {where}: {first['msg']}") from error

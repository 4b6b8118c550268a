"""Facts about a folder in a JSON file: a bundle's `manifest.json`, an exported `encoder.json`.

Each file names its `format` and `version`; a build reads one version of each format. Sizes and
SHA-256 checksums of files are recorded when the folder is written, and verified when it is read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any, TypeVar

import orjson
from pydantic import Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as checked_dataclass

from service.core.config import STRICT
from service.core.errors import BundleAltered, BundleMissing, BundleUnsupported
from service.core.wrong_values import what_is_wrong

Facts = TypeVar("Facts")
MOST_BYTES = 16 * 1024**2  # the largest file that is read; real ones have a few kilobytes


@checked_dataclass(frozen=True, kw_only=True, config=STRICT)
class FileFacts:
    """The size in bytes and the SHA-256 of one file."""

    bytes: Annotated[int, Field(ge=0, le=2**50)]
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


def file_facts(folder: Path, *, suffixes: Collection[str] | None = None) -> dict[str, FileFacts]:
    """Return size and checksum of each file in `folder`, by path; `suffixes` selects files."""
    names = [
        str(path.relative_to(folder))
        for path in sorted(folder.rglob("*"))
        if path.is_file() and (suffixes is None or path.suffix in suffixes)
    ]
    return {
        name: FileFacts(bytes=(folder / name).stat().st_size, sha256=digest)
        for name, digest in _digests(folder, names).items()
    }


def verify_files(folder: Path, files: Mapping[str, FileFacts]) -> None:
    """Compare the files in `folder` with their recorded facts, all sizes first.

    Raises `BundleMissing` or `BundleAltered`, naming the first file that differs.
    """
    for name, facts in files.items():
        path = folder / name
        if not path.is_file():
            raise BundleMissing(f"{path} is missing")
        size = path.stat().st_size
        if size != facts.bytes:
            raise BundleAltered(f"{path} has {size} bytes instead of the recorded {facts.bytes}")
    for name, digest in _digests(folder, files).items():
        if digest != files[name].sha256:
            raise BundleAltered(f"{folder / name} differs from its recorded SHA-256")


def _digests(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """Return the SHA-256 of each file; threads work in parallel, as hashing releases the lock."""

    def digest(name: str) -> tuple[str, str]:
        try:
            with (folder / name).open("rb") as file:
                return name, hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise BundleMissing(f"{folder / name} cannot be read: {error.strerror}") from error

    with ThreadPoolExecutor() as pool:
        return dict(pool.map(digest, names))


def read_document(path: Path, *, format_name: str, version: int) -> dict[str, Any]:
    """Return the JSON object at `path`; its `format` and `version` must be as given.

    Raises `BundleMissing` (no such file), or as `parse_document`.
    """
    return parse_document(read_bytes(path), place=path, format_name=format_name, version=version)


def read_bytes(path: Path) -> bytes:
    """Return the first `MOST_BYTES` + 1 bytes of the file; raises `BundleMissing`."""
    try:
        with path.open("rb") as file:
            return file.read(MOST_BYTES + 1)
    except OSError as error:
        raise BundleMissing(f"{path} cannot be read: {error.strerror}") from error


def parse_document(
    content: bytes, *, place: Path | str, format_name: str, version: int
) -> dict[str, Any]:
    """Return the JSON object in `content`; its `format` and `version` must be as given.

    Raises `BundleAltered` (not JSON, or longer than `MOST_BYTES`) or `BundleUnsupported` (another
    format or version). Every message names `place`, the file's path or URL.
    """
    if len(content) > MOST_BYTES:
        raise BundleAltered(f"{place} has more than {MOST_BYTES} bytes, which is too much")
    try:
        document: Any = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise BundleAltered(f"{place} is not JSON: {error}") from error
    if not isinstance(document, dict) or document.get("format") != format_name:
        raise BundleUnsupported(f"{place} does not describe a {format_name}")
    if document.get("version") != version:
        raise BundleUnsupported(
            f"{place} has format version {document.get('version')!r}, but this build of Keymatch"
            f" reads only version {version}: export it again with `keymatch export`"
        )
    return document


def checked(adapter: TypeAdapter[Facts], document: dict[str, Any], *, path: Path | str) -> Facts:
    """Return the document as a dataclass; raises `BundleAltered`, naming the file and the key."""
    try:
        return adapter.validate_json(orjson.dumps(document))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise BundleAltered(f"{path}: {where}: {what_is_wrong(first)}") from error

"""Sizes and SHA-256 checksums of files: recorded when a folder is written, verified when read."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pydantic.dataclasses import dataclass as checked_dataclass

from service.core.config import STRICT
from service.core.errors import BundleAltered, BundleMissing


@checked_dataclass(frozen=True, kw_only=True, config=STRICT)
class FileFacts:
    """Size in bytes and SHA-256 of one file."""

    bytes: int
    sha256: str


def file_facts(folder: Path, *, suffixes: Collection[str] | None = None) -> dict[str, FileFacts]:
    """Return size and checksum of every file below `folder`, by its path relative to `folder`.

    `suffixes` leaves out files whose names end otherwise, such as `[".npy"]`.
    """
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
    """Compare files below `folder` with their recorded facts.

    All sizes are compared before any file is hashed, because that is cheap. Raises
    `BundleMissing` or `BundleAltered`, naming the first file that differs.
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
    """Return the SHA-256 of each file, hashed in threads: hashing releases the interpreter lock."""

    def digest(name: str) -> tuple[str, str]:
        try:
            with (folder / name).open("rb") as file:
                return name, hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise BundleMissing(f"{folder / name} cannot be read: {error.strerror}") from error

    with ThreadPoolExecutor() as pool:
        return dict(pool.map(digest, names))

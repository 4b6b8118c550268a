"""Reads TOML files: those shipped with Keymatch by name, those of users by path."""

from __future__ import annotations

from collections.abc import Callable
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from service.core.config import read_toml
from service.core.errors import InvalidConfig

SUFFIX = ".toml"
Document = dict[str, Any]


def names(*packages: str) -> list[str]:
    """Return the names of the packages' TOML files, without the suffix."""
    return [name for package in packages for name in _names(package)]


def text(name: str, *packages: str) -> str:
    """Return the text of the TOML file `name` in one of the packages."""
    package = next(package for package in packages if name in _names(package))
    return (resources.files(package) / f"{name}{SUFFIX}").read_text()


def read(name: str, *packages: str, what: str) -> Document:
    """Read a TOML file of the packages or, if `name` ends in .toml, the file at this path.

    `what` is what the file contains, for the message of `InvalidConfig`, which lists all names.
    """
    if name.endswith(SUFFIX):
        return read_toml(Path(name))
    known = names(*packages)
    if name not in known:
        raise InvalidConfig(
            f"no {what} is named {name!r}: give a .toml file or one of {', '.join(known)}"
        )
    package = next(package for package in packages if name in _names(package))
    with resources.as_file(resources.files(package) / f"{name}{SUFFIX}") as path:
        return read_toml(path)


def read_extended(
    name: str,
    *,
    opened: Callable[[str], Document],
    merged: Callable[[Document, Document], Document],
    what: str,
) -> Document:
    """Return the document that `opened` reads, `merged` over the one that its `extends` names.

    `what` is what a document contains. Raises `InvalidConfig` if documents extend each other in a
    circle.
    """

    def extended(name: str, *extended_by: str) -> Document:
        if name in extended_by:
            raise InvalidConfig(f"{name} extends itself")
        document = opened(name)
        base = document.pop("extends", None)
        if base is None:
            return document
        if not isinstance(base, str):
            message = f"extends must be the name of a {what} or of a {SUFFIX} file"
            raise InvalidConfig(f"{name}: {message}")
        if base.endswith(SUFFIX):
            base = str(Path(name).parent / base)
        return merged(extended(base, *extended_by, name), document)

    return extended(name)


def _names(package: str) -> list[str]:
    """Return the names of a package's TOML files; none if the package is not installed."""
    parent = package.rpartition(".")[0]
    if find_spec(parent) is None or find_spec(package) is None:
        return []
    files = resources.files(package).iterdir()
    return sorted(file.name.removesuffix(SUFFIX) for file in files if file.name.endswith(SUFFIX))

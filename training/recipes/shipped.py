"""Reads TOML files: those shipped with Keymatch by name, those of users by path."""

from __future__ import annotations

from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from service.core.config import read_toml
from service.core.errors import InvalidConfig

SUFFIX = ".toml"


def names(*packages: str) -> list[str]:
    """Return the names of the packages' TOML files, without the suffix."""
    return [name for package in packages for name in _names(package)]


def text(name: str, *packages: str) -> str:
    """Return the text of the TOML file `name` in one of the packages."""
    package = next(package for package in packages if name in _names(package))
    return (resources.files(package) / f"{name}{SUFFIX}").read_text()


def read(name: str, *packages: str, what: str) -> dict[str, Any]:
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


def _names(package: str) -> list[str]:
    """Return the names of a package's TOML files; none if the package is not installed."""
    parent = package.rpartition(".")[0]
    if find_spec(parent) is None or find_spec(package) is None:
        return []
    files = resources.files(package).iterdir()
    return sorted(file.name.removesuffix(SUFFIX) for file in files if file.name.endswith(SUFFIX))

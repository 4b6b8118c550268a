"""TOML files: those shipped with Keymatch are read by name, those of users by path."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any

from service.core.config import read_toml
from service.core.errors import InvalidConfig

SUFFIX = ".toml"


def names(*packages: str) -> list[str]:
    """The names of the packages' TOML files, without the suffix; package after package."""
    return [name for package in packages for name in _names(package)]


def text(name: str, *packages: str) -> str:
    """The text of a file of the packages."""
    package = next(package for package in packages if name in _names(package))
    return (resources.files(package) / f"{name}{SUFFIX}").read_text()


def read(name: str, *packages: str, what: str) -> dict[str, Any]:
    """A TOML document: a file of the packages or, where `name` ends in .toml, that at this path.

    Raises `InvalidConfig` that lists the known names; `what` says what they name.
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
    files = resources.files(package).iterdir()
    return sorted(file.name.removesuffix(SUFFIX) for file in files if file.name.endswith(SUFFIX))

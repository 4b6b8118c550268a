"""TOML files: those shipped with Keymatch are read by name, those of users by path."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any

from service.core.config import read_toml
from service.core.errors import InvalidConfig

SUFFIX = ".toml"


def names(package: str) -> list[str]:
    """The names of a package's TOML files, without the suffix."""
    files = resources.files(package).iterdir()
    return sorted(file.name.removesuffix(SUFFIX) for file in files if file.name.endswith(SUFFIX))


def read(name: str, *, package: str, what: str) -> dict[str, Any]:
    """A TOML document: a file of the package or, where `name` ends in .toml, the file at that path.

    Raises `InvalidConfig` that lists the known names; `what` says what they name.
    """
    if name.endswith(SUFFIX):
        return read_toml(Path(name))
    known = names(package)
    if name not in known:
        raise InvalidConfig(
            f"no {what} is named {name!r}: give a .toml file or one of {', '.join(known)}"
        )
    with resources.as_file(resources.files(package) / f"{name}{SUFFIX}") as path:
        return read_toml(path)

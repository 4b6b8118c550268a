"""Data sets: readers, writers and splits.

A data set that needs no file of the user is a new module and a line in `BUILTIN`.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from service.core.errors import InvalidInput

if TYPE_CHECKING:
    from training.datasets.dataset import Dataset


@dataclass(frozen=True, kw_only=True)
class Builtin:
    """A data set that can be loaded by name; its `module` has a function `load() -> Dataset`."""

    module: str
    summary: str


BUILTIN = {
    "moby": Builtin(
        module="training.datasets.moby",
        summary="The Moby thesaurus (public domain): a root and its related terms.",
    ),
}


def load_builtin(name: str) -> Dataset:
    """Load a data set of `BUILTIN`, importing its module; `InvalidInput` for an unknown name."""
    if name not in BUILTIN:
        raise InvalidInput(f"{name!r} is unknown; there are {', '.join(BUILTIN)}", field="dataset")
    dataset: Dataset = import_module(BUILTIN[name].module).load()
    return dataset

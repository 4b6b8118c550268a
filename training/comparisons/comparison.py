"""Comparisons: the systems that are measured side by side on one data set, read from TOML.

extends = "moby"                  # its `set` and its entries come before those of this file
set = ["optimizer.steps=120"]     # overrides every recipe, so that all train alike

[[entries]]
name = "rae"                      # the name of its folder, and in the report
recipe = "rae-moby"               # or encoder = "package:NAME", peer = "bm25", fit = 20.0 (minutes)
set = ["batch.hard_negatives=1"]  # overrides this recipe, or options of this peer
guided_by = "oracle"              # an entry before it, whose run is the oracle of `[guidance]`
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import Field
from pydantic.dataclasses import dataclass

from service.core.config import STRICT, Positive, parse
from service.core.errors import InvalidConfig
from training.recipes import shipped

PACKAGE = "training.comparisons"
Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]*$")]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Entry:
    """A system of a comparison: exactly one of recipe, encoder, peer and fit is given.

    `fit` is the time that `python -m training fit` has, in minutes. `guided_by` is the name of an
    entry before this one, whose run is MOGIC's oracle.
    """

    name: Name
    recipe: str | None = None
    encoder: str | None = None
    peer: str | None = None
    fit: Positive | None = None
    set: tuple[str, ...] = ()
    guided_by: Name | None = None


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Comparison:
    """The systems in their order; `set` overrides every recipe."""

    entries: Annotated[tuple[Entry, ...], Field(min_length=1)]
    set: tuple[str, ...] = ()

    def chosen(self, only: tuple[str, ...]) -> tuple[Entry, ...]:
        """The entries of these names, all where `only` is empty; raises `InvalidConfig`."""
        known = {entry.name: entry for entry in self.entries}
        for name in only:
            if name not in known:
                raise InvalidConfig(f"--only {name}: no such entry; known are {', '.join(known)}")
        return tuple(entry for entry in self.entries if not only or entry.name in only)


def names() -> list[str]:
    """The names of the comparisons that come with Keymatch."""
    return shipped.names(PACKAGE)


def load(name: str) -> Comparison:
    """Read a comparison by its name or from a `.toml` file.

    Raises `InvalidConfig` naming file, key and allowed values.
    """
    comparison = parse(Comparison, _document(name), source=name)
    seen: dict[str, Entry] = {}
    for entry in comparison.entries:
        _check(entry, seen, source=name)
        seen[entry.name] = entry
    return comparison


def _document(name: str, *, extended_by: tuple[str, ...] = ()) -> dict[str, Any]:
    """The file's document, with `set` and entries of the comparison that it extends in front.

    `extended_by` are the comparisons that led here.
    """
    if name in extended_by:
        raise InvalidConfig(f"{name} extends itself")
    document = shipped.read(name, PACKAGE, what="comparison")
    base = document.pop("extends", None)
    if base is None:
        return document
    if not isinstance(base, str):
        raise InvalidConfig(f"{name}: extends must be the name of a comparison or of a .toml file")
    if base.endswith(shipped.SUFFIX):
        base = str(Path(name).parent / base)
    first = _document(base, extended_by=(*extended_by, name))
    for key in ("set", "entries"):
        if isinstance(document.get(key, []), list):  # or `parse` says what is wrong with it
            document[key] = [*first.get(key, ()), *document.get(key, ())]
    return document


def _check(entry: Entry, seen: dict[str, Entry], *, source: str) -> None:
    """Raise `InvalidConfig` for an entry that cannot be run after those `seen`."""
    kinds = (entry.recipe, entry.encoder, entry.peer, entry.fit)
    if sum(kind is not None for kind in kinds) != 1:
        raise InvalidConfig(
            f"{source}: {entry.name} needs exactly one of recipe, encoder, peer and fit"
        )
    if entry.set and entry.recipe is None and entry.peer is None:
        kind = "fit" if entry.encoder is None else "an encoder"
        raise InvalidConfig(
            f"{source}: {entry.name}: the key `set` does not apply to {kind}; remove it"
        )
    if entry.name in seen:
        raise InvalidConfig(f"{source}: two entries are named {entry.name}")
    if entry.guided_by is not None:
        oracle = seen.get(entry.guided_by)
        if entry.recipe is None or oracle is None or oracle.recipe is None:
            raise InvalidConfig(
                f"{source}: {entry.name}: guided_by names an entry before it, and both have a"
                f" recipe; {entry.guided_by} is none"
            )

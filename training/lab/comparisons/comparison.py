"""Comparisons: the systems that are measured on one data set, read from TOML.

extends = "moby"                  # put the `set` and entries of that comparison before these
set = ["optimizer.steps=120"]     # overrides every recipe, so all systems train alike

[[entries]]
name = "rae"                      # names the folder and the row in the report
recipe = "rae-moby"               # or encoder = "package:NAME", peer = "bm25", fit = 20.0 (minutes)
set = ["batch.hard_negatives=1"]  # overrides this recipe, or options of this peer
guided_by = "oracle"              # an earlier entry; its run is the oracle of `[guidance]`
encoder_of = "first"              # an earlier entry; the recipe starts from its encoder

[[entries]]
name = "rae-reranked"
reranks = "rae"                   # an earlier entry; a reranker orders its best labels again

[[entries]]
name = "unidec-de"
scores = "unidec"                 # an earlier entry, which is scored again
head_share = 1.0                  # with this weight of UniDEC's first head
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field
from pydantic.dataclasses import dataclass

from service.core.config import STRICT, Positive, Share, parse
from service.core.errors import InvalidConfig
from training.recipes import shipped

PACKAGE = "training.lab.comparisons"
Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]*$")]
KINDS = ("recipe", "encoder", "peer", "fit", "reranks", "scores")


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Entry:
    """A system of a comparison: exactly one of `KINDS` is given.

    `fit` is the time for `keymatch fit` in minutes. The other fields name earlier entries:
    `guided_by` the run that is MOGIC's oracle, `encoder_of` the run whose encoder the recipe starts
    from, `reranks` the run whose labels are reranked, and `scores` UniDEC's run that is scored with
    `head_share`.
    """

    name: Name
    recipe: str | None = None
    encoder: str | None = None
    peer: str | None = None
    fit: Positive | None = None
    reranks: Name | None = None
    scores: Name | None = None
    head_share: Share | None = None
    set: tuple[str, ...] = ()
    guided_by: Name | None = None
    encoder_of: Name | None = None

    @property
    def is_seeded(self) -> bool:
        """Whether the result depends on the seed of a recipe."""
        return any((self.recipe, self.reranks, self.scores))


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Comparison:
    """The systems in order; `set` overrides every recipe."""

    entries: Annotated[tuple[Entry, ...], Field(min_length=1)]
    set: tuple[str, ...] = ()

    def named(self, name: str) -> Entry:
        """The entry named `name`, which must exist."""
        return next(entry for entry in self.entries if entry.name == name)

    def chosen(self, only: tuple[str, ...]) -> tuple[Entry, ...]:
        """The entries with these names, or all if `only` is empty; raises `InvalidConfig`."""
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
    document = shipped.read_extended(
        name,
        opened=lambda name: shipped.read(name, PACKAGE, what="comparison"),
        merged=_appended,
        what="comparison",
    )
    comparison = parse(Comparison, document, source=name)
    seen: dict[str, Entry] = {}
    for entry in comparison.entries:
        _check(entry, seen, source=f"{name}: {entry.name}")
        if entry.name in seen:
            raise InvalidConfig(f"{name}: two entries are named {entry.name}")
        seen[entry.name] = entry
    return comparison


def _appended(base: dict[str, Any], document: dict[str, Any]) -> dict[str, Any]:
    """Return a comparison, preceded by `set` and entries of the one that it extends."""
    for key in ("set", "entries"):
        if isinstance(document.get(key, []), list):  # `parse` reports a value that is no list
            document[key] = [*base.get(key, ()), *document.get(key, ())]
    return document


def _check(entry: Entry, before: Mapping[str, Entry], *, source: str) -> None:
    """Raise `InvalidConfig` for keys that exclude each other, and for names of no earlier entry.

    `source` names the entry in messages.
    """
    kinds = [kind for kind in KINDS if getattr(entry, kind) is not None]
    if len(kinds) != 1:
        raise InvalidConfig(f"{source} needs exactly one of {', '.join(KINDS)}")
    kind = {"encoder": "an encoder"}.get(kinds[0], kinds[0])
    if entry.set and kinds[0] not in ("recipe", "peer"):
        raise InvalidConfig(f"{source}: the key `set` does not apply to {kind}; remove it")
    if (entry.head_share is None) != (entry.scores is None):
        raise InvalidConfig(f"{source}: scores and head_share go together")
    for key in ("guided_by", "encoder_of"):
        if getattr(entry, key) is not None and entry.recipe is None:
            raise InvalidConfig(f"{source}: the key `{key}` does not apply to {kind}; remove it")
    for key in ("guided_by", "encoder_of", "reranks", "scores"):
        name = getattr(entry, key)
        if name is None:
            continue
        other = before.get(name)
        if other is None or not (other.recipe or (other.fit and key == "reranks")):
            raise InvalidConfig(
                f"{source}: {key} names an entry before it that has a recipe; {name} is none"
            )

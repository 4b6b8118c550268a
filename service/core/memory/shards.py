"""A memory whose keys are divided into shards: the rows of each shard, and how they are asked.

Every process of a divided memory follows the same label log, so all give the same numbers to rows
and columns. A shard holds the keys of its rows, and searches them; to it, all other rows are dead.
The front holds everything but keys: votes, texts, words, labels and rules. It asks all shards for
the nearest rows of a query, merges them, and continues as if it had found them itself.

Shard i of N holds part i of N, see `index.key_parts`. The rows of one key are in the same part, so
they are limited to their share of the places there, as in a memory that is not divided.

Shapes: B queries, b keys per query, n rows, d dimensions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Protocol

import numpy as np

from service.core.index.found_rows import nearest, pad
from service.core.index.key_parts import KeyShare
from service.core.label_filter import LabelFilter
from service.core.lexical.hybrid import Cosines
from service.core.memory.decay import Decay
from service.core.tenant import Tenant
from service.core.types import Floats, Halves, RowKind, Rows

if TYPE_CHECKING:
    from service.core.memory.view import View

_SPARE_DEVIATIONS = 3


@dataclass(frozen=True, kw_only=True)
class Scope:
    """How a view was made from that of all labels, so that a shard can make its own the same way.

    Labels were left out that are not active `at` a time in microseconds, that are not a `tenant`'s,
    and that do not pass each of the `filters`. `warnings` are sentences about conditions of the
    last filter that never hold (`filtered_view`). With a `decay`, it reduces the weights of old
    votes; without one, votes have the weights that were posted. Shards need neither.
    """

    at: int | None = None
    tenant: Tenant | None = None
    filters: tuple[LabelFilter, ...] = ()
    warnings: tuple[str, ...] = ()
    decay: Decay | None = None

    def only(self, wanted: LabelFilter) -> Scope:
        """Return the scope with one filter more."""
        return replace(self, filters=(*self.filters, wanted))


EVERYTHING = Scope()


class FoundRows(NamedTuple):
    """The nearest rows [B, b] of queries, descending, and the cosines of rows that were named.

    Row -1 fills missing places. `cosines` has an array for each query: those of its named rows. If
    the result is `partial`, a shard has not answered.
    """

    similarities: Floats
    rows: Rows
    cosines: Sequence[Floats] = ()
    partial: bool = False


@dataclass(frozen=True, kw_only=True, eq=False)
class KeySearch:
    """A search in one version of the memory, as a front sends it to all shards.

    `queries` [B, d] are searched for `depth` rows of a `kind`. `named` are rows of each query whose
    cosines are wanted, too. `count` rows are wanted of each shard; None: all. `next_row` is the
    number of the next row in this version: a shard that has another one has made a mistake.
    """

    version: int
    next_row: int
    scope: Scope
    queries: Floats
    depth: int
    kind: RowKind | None
    exact: bool
    named: Sequence[Rows] = ()
    count: int | None = None


@dataclass(frozen=True, kw_only=True)
class ShardStatus:
    """A shard's newest version, the number of its rows, and whether all its graphs are built.

    Until they are built, searches are slower.
    """

    version: int
    rows: int
    built: bool


class Shards(Protocol):
    """The shards of a divided memory, as its front asks them. Any thread may use it."""

    @property
    def attended(self) -> bool:
        """Whether somebody starts shards again that die."""
        ...

    @property
    def replicas(self) -> int:
        """The number of processes that are known to hold a shard."""
        ...

    def status(self) -> Sequence[ShardStatus | None]:
        """Return what each shard holds, None for those that do not answer."""
        ...

    def search(self, wanted: KeySearch) -> FoundRows:
        """Find the nearest rows over all shards; raises `ShardsUnavailable`."""
        ...

    def vectors(self, version: int, rows: Rows) -> Halves:
        """Return the keys [n, d] of `rows` [n]; raises `ShardsUnavailable`."""
        ...


@dataclass(frozen=True)
class ShardedKeys:
    """Keys in the `shards` of a divided memory, whose front this process is."""

    shards: Shards
    share: ClassVar[KeyShare | None] = None
    held: ClassVar[bool] = False

    def search(self, view: View, wanted: KeySearch) -> FoundRows:
        """Search all shards; raises `ShardsUnavailable`."""
        return self.shards.search(wanted)

    def cosines(self, view: View, wanted: KeySearch, found: FoundRows) -> Cosines:
        """Return the cosines of the rows that were named, ascending."""
        named = wanted.named
        return lambda place, rows: found.cosines[place][np.searchsorted(named[place], rows)]

    def vectors(self, view: View, rows: Rows) -> Halves:
        """Return the keys [n, d] of `rows` [n]; raises `ShardsUnavailable`."""
        return self.shards.vectors(view.version, rows)


def places_per_shard(depth: int, shards: int) -> int:
    """Return how many rows to ask of each shard at first, so that few queries need more.

    The nearest `depth` rows are divided like all rows: by chance, with a deviation of
    sqrt(depth p (1 - p)).
    """
    share = 1 / shards
    spare = _SPARE_DEVIATIONS * math.sqrt(depth * share * (1 - share))
    return min(depth, math.ceil(depth * share + spare))


def search_all(
    wanted: KeySearch, shards: int, ask: Callable[[KeySearch], Sequence[FoundRows]]
) -> FoundRows:
    """Find the nearest rows over all shards; `ask` returns what each of them found.

    Each shard is asked for a part of the depth at first. If its last row is one of the nearest, it
    may have further ones, so all shards are asked again for this query, for the whole depth.
    """
    count = places_per_shard(wanted.depth, shards)
    found = ask(replace(wanted, count=count))
    joined = merged(found, depth=wanted.depth)
    if count == wanted.depth:
        return joined
    last = np.max([one.similarities[:, -1] for one in found], axis=0)  # [B]
    short = np.flatnonzero((last >= joined.similarities[:, -1]) & (last > -np.inf))
    if len(short):
        again = replace(wanted, queries=wanted.queries[short], count=wanted.depth, named=())
        further = merged(ask(again), depth=wanted.depth)
        joined.similarities[short], joined.rows[short] = further.similarities, further.rows
        joined = joined._replace(partial=joined.partial or further.partial)
    return joined


def merged(found: Sequence[FoundRows], *, depth: int) -> FoundRows:
    """Merge what each shard found, one or more. A row that a shard does not hold has no cosine."""
    similarities = np.hstack([one.similarities for one in found])
    rows = np.hstack([one.rows for one in found])
    of_queries = zip(*(one.cosines for one in found), strict=True)
    cosines = [np.fmax.reduce(of_query) for of_query in of_queries]
    partial = any(one.partial for one in found)
    return FoundRows(*pad(*nearest(similarities, rows, count=depth), count=depth), cosines, partial)

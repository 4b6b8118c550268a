"""A memory whose keys are divided into shards: the rows of each shard, and how they are asked.

Every process of a divided memory follows the same label log, so all give the same numbers to rows
and columns. A shard holds the keys of its rows, and searches them; to it, all other rows are dead.
The front holds everything but keys: votes, texts, words, labels and rules. It asks all shards for
the nearest rows of a query, merges them, and continues as if it had found them itself.

Rows are divided by a hash of their keys' bits. So a row stays in its shard however many are added,
each row is in one shard, and the rows of one key are in the same one. There they are limited to
their share of the places, as in a memory that is not divided.

Shapes: B queries, b keys per query, n rows, d dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import numpy as np

from service.core.index.equal_keys import key_hashes
from service.core.index.found_rows import nearest, pad
from service.core.index.protocol import batches
from service.core.label_filter import LabelFilter
from service.core.tenant import Tenant
from service.core.types import Bools, Floats, Halves, RowKind, Rows

_HASHED_ROWS = 8_192  # at once
_HIGH_BITS = np.uint64(32)  # of a hash; its low bits depend on few bits of the key


@dataclass(frozen=True, kw_only=True)
class KeyShare:
    """The part of all keys that shard `index` of `count` holds."""

    index: int
    count: int

    def holds(self, keys: Halves) -> Bools:
        """Return which of `keys` [n, d] belong to this shard."""
        held = [
            (key_hashes(keys[batch]) >> _HIGH_BITS) % np.uint64(self.count) == self.index
            for batch in batches(len(keys), _HASHED_ROWS)
        ]
        return np.concatenate([np.zeros(0, bool), *held])


@dataclass(frozen=True, kw_only=True)
class Scope:
    """How a view was made from that of all labels, so that a shard can make its own the same way.

    Labels were left out that are not active `at` a Unix time, that are not a `tenant`'s, and that
    do not pass each of the `filters`.
    """

    at: float | None = None
    tenant: Tenant | None = None
    filters: tuple[LabelFilter, ...] = ()

    def only(self, wanted: LabelFilter) -> Scope:
        """Return the scope with one filter more."""
        return replace(self, filters=(*self.filters, wanted))


EVERYTHING = Scope()


class FoundRows(NamedTuple):
    """The nearest rows [B, b] of queries, descending, and the cosines of rows that were named.

    Row -1 fills missing places. `cosines` has an array for each query: those of its named rows.
    """

    similarities: Floats
    rows: Rows
    cosines: Sequence[Floats]


@dataclass(frozen=True, kw_only=True, eq=False)
class KeySearch:
    """What a front asks of all shards: a search in one version of the memory.

    `queries` [B, d] are searched for `depth` rows of a `kind`. `named` are rows of each query whose
    cosines are wanted, too.
    """

    version: int
    scope: Scope
    queries: Floats
    depth: int
    kind: RowKind | None
    exact: bool
    named: Sequence[Rows] = ()


class Shards(Protocol):
    """The shards of a divided memory, as its front asks them. Any thread may use it."""

    def search(self, wanted: KeySearch) -> FoundRows:
        """Find the nearest rows over all shards; raises `ShardsUnavailable`."""
        ...

    def vectors(self, version: int, rows: Rows) -> Halves:
        """Return the keys [n, d] of `rows` [n]; raises `ShardsUnavailable`."""
        ...


def merged(found: Sequence[FoundRows], *, depth: int) -> FoundRows:
    """Merge what each shard found, one or more. A row that a shard does not hold has no cosine."""
    if len(found) == 1:
        return found[0]
    similarities = np.hstack([one.similarities for one in found])
    rows = np.hstack([one.rows for one in found])
    of_queries = zip(*(one.cosines for one in found), strict=True)
    cosines = [np.fmax.reduce(of_query) for of_query in of_queries]
    return FoundRows(*pad(*nearest(similarities, rows, count=depth), count=depth), cosines)

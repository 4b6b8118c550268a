"""Where the keys of a memory's rows come from: this process holds them, or shards do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

import numpy as np

from service.core.index.found_rows import (
    nearest,
    nearest_sharing,
    one_similarity_per_key,
    pad,
    places_per_key,
)
from service.core.index.key_parts import KeyShare, queue_for_part
from service.core.lexical.hybrid import Cosines, cosines_by
from service.core.memory.shards import FoundRows, KeySearch, Shards
from service.core.types import Floats, Halves, Rows

if TYPE_CHECKING:
    from service.core.memory.view import View


class KeySource(Protocol):
    """The keys of all rows. If they are `held`, this process searches them, so it needs graphs."""

    held: ClassVar[bool]

    @property
    def share(self) -> KeyShare | None:
        """In a shard, its share of the keys; rows of other shards are dead there."""
        ...

    def search(self, view: View, wanted: KeySearch) -> tuple[FoundRows, Cosines]:
        """Find the nearest rows in a view; returns also the cosines of rows that were named."""
        ...

    def vectors(self, view: View, rows: Rows) -> Halves:
        """Return the keys [n, d] of `rows` [n]."""
        ...


@dataclass(frozen=True)
class HeldKeys:
    """Keys in this process: all, or those of a shard's `share`."""

    share: KeyShare | None = None
    held: ClassVar[bool] = True

    def search(self, view: View, wanted: KeySearch) -> tuple[FoundRows, Cosines]:
        """Search the bundle's rows and each part of the learned rows."""
        return FoundRows(*_nearest(view, wanted)), cosines_by(view.vectors, wanted.queries)

    def vectors(self, view: View, rows: Rows) -> Halves:
        """Return the keys [n, d] of `rows` [n]."""
        vectors = np.empty((len(rows), view.bundle.keys.shape[1]), np.float16)
        for part, places in view.by_part(rows):
            vectors[places] = part.vectors(rows[places])
        return vectors


@dataclass(frozen=True)
class ShardedKeys:
    """Keys in the `shards` of a divided memory, whose front this process is."""

    shards: Shards
    share: ClassVar[KeyShare | None] = None
    held: ClassVar[bool] = False

    def search(self, view: View, wanted: KeySearch) -> tuple[FoundRows, Cosines]:
        """Search all shards; raises `ShardsUnavailable`."""
        found = self.shards.search(wanted)

        def cosines(place: int, rows: Rows) -> Floats:
            return found.cosines[place][np.searchsorted(wanted.named[place], rows)]

        return found, cosines

    def vectors(self, view: View, rows: Rows) -> Halves:
        """Return the keys [n, d] of `rows` [n]; raises `ShardsUnavailable`."""
        return self.shards.vectors(view.version, rows)


def _nearest(view: View, wanted: KeySearch) -> tuple[Floats, Rows]:
    """Return similarities [B, b] and rows of the nearest keys that this process holds."""
    queries, depth, kind = wanted.queries, wanted.depth, wanted.kind
    share, ef = places_per_key(depth), None if wanted.exact else view.bundle.manifest.index.ef
    if wanted.count is not None:
        ef = ef and queue_for_part(ef, wanted.count / depth)
        depth = wanted.count
    similarities, rows = view.base.search(queries, count=depth, ef=ef, kind=kind, share=share)
    if view.parts:
        # A part's row matters only if it beats the base's last row, -inf if that is missing.
        above = similarities[:, -1]
        results = [
            part.search(queries, count=depth, ef=ef, kind=kind, share=share, above=above)
            for part in view.parts
        ]
        similarities = np.hstack([similarities, *(found for found, _ in results)])
        rows = np.hstack([rows, *(found for _, found in results)])
    similarities = np.where(rows < 0, np.float32(-np.inf), similarities)
    if not view.parts:
        return pad(*nearest(similarities, rows, count=depth), count=depth)
    found = one_similarity_per_key(
        *nearest(similarities, rows, count=rows.shape[1]), share=share, vectors_of=view.vectors
    )
    return pad(*nearest_sharing(*found, count=depth, share=share), count=depth)

"""The items posted since the bundle: appended to one storage, and found by place and by text.

Everything is persistent except the vectors, which are written after those that older versions
count. As with live rows, the only writer appends to the newest version only. Items are grouped into
indexes as rows are grouped into segments (`compaction`), so a query scans only the newest. All
vectors also stay in main memory: the keys of posted queries must not depend on indexes, which other
processes may not have.

Shapes: m items, d dimensions.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from rpds import HashTrieMap

from service.core.index.exact import LiveVectors
from service.core.index.parts import Part, with_sealed
from service.core.index.protocol import Segment, Tombstones
from service.core.items.persistent_sets import SortedKeys
from service.core.text_identity import identity
from service.core.types import Floats, Halves, Rows

_FIRST_CAPACITY = 64  # vectors; doubled when it is full
# The queue length of a walk: it finds at least 99 % of the three nearest posted items.
SEALED_EF = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryItem:
    """One item. No other item ever gets its `place`, a number in the memory."""

    place: int
    id: str
    text: str


@dataclass(frozen=True, kw_only=True)
class PostedItems:
    """The items at the places from `first` on, including dead ones.

    `ids` and `texts` are sorted: they hold the ids and the text identities of alive items, each
    with its place. The parts number the items from 0. `live` has all items, `sealed` are the
    indexes over the first ones, and `tail` has the items after those (None without an index).
    `projected`, fp16 [capacity, 2, d], has what queries read of each item.
    """

    first: int
    vectors: LiveVectors
    live: Part
    projected: Halves
    by_place: HashTrieMap[int, MemoryItem] = field(default_factory=HashTrieMap)
    ids: SortedKeys = field(default_factory=SortedKeys)
    texts: SortedKeys = field(default_factory=SortedKeys)
    sealed: tuple[Part, ...] = ()
    tail: Part | None = None

    @classmethod
    def none(cls, *, first: int, dimension: int) -> PostedItems:
        """Return an empty collection with room for some items."""
        vectors = LiveVectors(capacity=_FIRST_CAPACITY, dimension=dimension)
        projected = np.empty((_FIRST_CAPACITY, 2, dimension), np.float16)
        return cls(first=first, vectors=vectors, live=_part(vectors), projected=projected)

    def __len__(self) -> int:
        """Return the number of alive items."""
        return self.count - self.live.dead_rows

    @property
    def count(self) -> int:
        """The number of items, dead ones included."""
        return self.live.stop

    @property
    def stop(self) -> int:
        """The place that the next item gets."""
        return self.first + self.count

    @property
    def sealed_count(self) -> int:
        """The number of items that the indexes cover, dead ones included."""
        return self.sealed[-1].stop if self.sealed else 0

    def append(self, item_id: str, text: str, vector: Halves, projected: Halves) -> PostedItems:
        """Return the items with one more: its key `vector` [d]; queries read `projected` [2, d]."""
        place, vectors, all_projected = self.stop, self.vectors, self.projected
        live = self.live
        if self.count == vectors.capacity:
            vectors = vectors.copied(0, self.count)
            all_projected = np.concatenate([all_projected, np.empty_like(all_projected)])
            live = replace(live, live=vectors, dead=live.dead.of_size(vectors.capacity))
        all_projected[self.count] = projected
        live, tail = _appended(live, vector), self.tail
        if tail is not None:
            if tail.stored_rows == tail.dead.size:
                tail = self._tail(tail.first)
            tail = _appended(tail, vector)
        return replace(
            self,
            vectors=vectors,
            live=live,
            tail=tail,
            projected=all_projected,
            by_place=self.by_place.insert(place, MemoryItem(place=place, id=item_id, text=text)),
            ids=self.ids.insert((item_id, place)),
            texts=self.texts.insert((identity(text), place)),
        )

    def without(self, item: MemoryItem) -> PostedItems:
        """Return the items without this one; its vector stays."""
        died = [item.place - self.first]
        return replace(
            self,
            live=self.live.with_tombstones(died),
            sealed=tuple(part.with_tombstones(died) for part in self.sealed),
            tail=self.tail and self.tail.with_tombstones(died),
            by_place=self.by_place.remove(item.place),
            ids=self.ids.discard((item.id, item.place)),
            texts=self.texts.discard((identity(item.text), item.place)),
        )

    def with_index(self, first: int, stop: int, rows: Rows, segment: Segment | None) -> PostedItems:
        """Return the items with an index over the vectors `rows` [n] of items `first` to `stop`."""
        index = Part(
            first=first, stop=stop, rows=rows, segment=segment, dead=Tombstones(size=len(rows))
        )
        sealed = with_sealed(self.sealed, index.with_alive(self.live.alive_rows()))
        covered = sealed[-1].stop
        tail = self.tail if covered == self.sealed_count else self._tail(covered)
        return replace(self, sealed=sealed, tail=tail)

    def scanned(self) -> PostedItems:
        """Return the same items without indexes, so that a search is exact."""
        return replace(self, sealed=(), tail=None) if self.sealed else self

    def search(self, query: Floats, count: int) -> list[tuple[Floats, Rows]]:
        """Return, for each part, similarities and places of the items nearest to a query [1, d]."""
        found = []
        for part in (*self.sealed, self.live if self.tail is None else self.tail):
            most = min(count, part.stored_rows - part.dead_rows)
            if most:
                similarities, rows = part.search(query, count=most, ef=SEALED_EF)
                kept = rows[0] >= 0
                found.append((similarities[0][kept], rows[0][kept] + self.first))
        return found

    def alive_rows(self, first: int, stop: int) -> Rows:
        """Return the numbers of the alive items from `first` to `stop`, ascending."""
        alive = self.live.alive_rows()
        return alive[slice(*np.searchsorted(alive, (first, stop)))]

    def _tail(self, first: int) -> Part:
        """Return a part with the items from `first` on and its own storage."""
        vectors = self.vectors.copied(first, self.count)
        tail = replace(_part(vectors), first=first, stop=self.count)
        return tail.with_alive(self.live.alive_rows())


def _part(vectors: LiveVectors) -> Part:
    """Return a part of a storage that counts no vector yet."""
    return Part(first=0, stop=0, live=vectors, dead=Tombstones(size=vectors.capacity))


def _appended(part: Part, vector: Halves) -> Part:
    """Write a vector [d] after the present ones, and return the part that counts it."""
    assert part.live is not None
    part.live.write(part.stored_rows, vector[None].astype(np.float16))
    return replace(part, stop=part.stop + 1)

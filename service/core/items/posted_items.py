"""The items posted since the bundle: appended to one storage, and found by place and by text.

All of it is persistent but for the vectors, which are written behind what older versions count. As
with live rows, there is one writer: it appends to the newest version only.

Shapes: m items, d dimensions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from rpds import HashTrieMap

from service.core.index.exact import LiveVectors
from service.core.index.protocol import RowFilter, Segment
from service.core.items.base_items import comparable
from service.core.items.sealed_items import ItemSegments, SealedItems
from service.core.items.sorted_keys import SortedKeys
from service.core.items.tombstones import Tombstones
from service.core.types import Floats, Halves, Rows

_FIRST_CAPACITY = 64  # vectors; doubled when they are used up


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryItem:
    """One item; `place` is its number in the memory, which no other item ever gets."""

    place: int
    id: str
    text: str


@dataclass(frozen=True, kw_only=True)
class PostedItems:
    """The items at the places from `first` on; `count` of them were posted, `dead` ones too.

    `ids` and `texts` hold those that are alive, each with its place, in order. `dead` counts places
    from `first`, and so do the `segments`, the indexes over some of the items. The key of each is
    in `vectors`, and what queries read of it in `projected`, fp16 [capacity, 2, d].
    """

    first: int
    vectors: LiveVectors
    projected: Halves
    count: int = 0
    dead: Tombstones = field(default_factory=Tombstones)
    by_place: HashTrieMap[int, MemoryItem] = field(default_factory=HashTrieMap)
    ids: SortedKeys = field(default_factory=SortedKeys)
    texts: SortedKeys = field(default_factory=SortedKeys)
    segments: ItemSegments = field(default_factory=ItemSegments)

    @classmethod
    def none(cls, *, first: int, dimension: int) -> PostedItems:
        """Return no items, with room for some."""
        vectors = LiveVectors(capacity=_FIRST_CAPACITY, dimension=dimension)
        projected = np.empty((_FIRST_CAPACITY, 2, dimension), np.float16)
        return cls(first=first, vectors=vectors, projected=projected)

    def __len__(self) -> int:
        """Return how many are alive."""
        return self.count - self.dead.count

    @property
    def stop(self) -> int:
        """The place that the next item gets."""
        return self.first + self.count

    def append(self, item_id: str, text: str, vector: Halves, projected: Halves) -> PostedItems:
        """Return the items with another one: its key `vector` [d], read as `projected` [2, d]."""
        place = self.stop
        vectors, all_projected = self._with_room()
        vectors.write(self.count, vector[None].astype(np.float16))
        all_projected[self.count] = projected
        item = MemoryItem(place=place, id=item_id, text=text)
        return replace(
            self,
            vectors=vectors,
            projected=all_projected,
            count=self.count + 1,
            by_place=self.by_place.insert(place, item),
            ids=self.ids.insert((item_id, place)),
            texts=self.texts.insert((comparable(text), place)),
            segments=self.segments.append(self.count, vector),
        )

    def without(self, item: MemoryItem) -> PostedItems:
        """Return the items without one of them; its vector stays."""
        return replace(
            self,
            dead=self.dead.with_dead(item.place - self.first),
            by_place=self.by_place.remove(item.place),
            ids=self.ids.discard((item.id, item.place)),
            texts=self.texts.discard((comparable(item.text), item.place)),
            segments=self.segments.without(item.place - self.first),
        )

    def with_index(self, first: int, stop: int, rows: Rows, segment: Segment | None) -> PostedItems:
        """Return the items with an index over the vectors `rows` [n] of those `first` to `stop`."""
        index = SealedItems(first=first, stop=stop, rows=rows, segment=segment)
        index = index.with_dead(np.flatnonzero(~self.alive.allows(rows)).tolist())
        segments = self.segments.with_index(index, self.vectors, count=self.count)
        return replace(self, segments=segments)

    def scanned(self) -> PostedItems:
        """Return the same items without an index, so that a search finds exactly the nearest."""
        return replace(self, segments=ItemSegments()) if self.segments.sealed else self

    def find_text(self, text: str) -> int | None:
        """Return the first place of an item with this comparable text, None if there is none."""
        found, place = next(self.texts.above((text, -1)), ("", -1))
        return place if place >= 0 and found == text else None

    def search(self, query: Floats, count: int) -> tuple[Floats, Rows]:
        """Return similarities and places [at most count] of the items nearest to a query [1, d]."""
        count = min(count, len(self))
        if not count:
            return np.zeros(0, np.float32), np.zeros(0, np.int64)
        if self.segments.sealed:
            similarities, rows = self.segments.search(query, count, self._alive_behind)
            return similarities, rows + self.first
        similarities, rows = self.vectors.search(query, count=count, row_filter=self.alive)
        return similarities[0], rows[0] + self.first

    @cached_property
    def alive(self) -> RowFilter:
        """Which vectors are those of items."""
        return RowFilter(start=0, stop=self.count, alive=self.dead.alive(self.count))

    def alive_rows(self, first: int, stop: int) -> Rows:
        """Return which of the vectors `first` to `stop` are those of items, ascending."""
        return np.flatnonzero(self.alive.mask()[first:stop]) + first

    @cached_property
    def _alive_behind(self) -> RowFilter:
        """Which vectors behind the last index are those of items, counted from there."""
        first = self.segments.stop
        alive = self.alive.mask()[first:]
        bits = None if alive.all() else np.packbits(alive, bitorder="little")
        return RowFilter(start=0, stop=len(alive), alive=bits)

    def places(self) -> Iterator[int]:
        """Yield the places of all items, ascending."""
        return iter((np.flatnonzero(self.alive.mask()) + self.first).tolist())

    def _with_room(self) -> tuple[LiveVectors, Halves]:
        """`vectors` and `projected`, or copies with twice the capacity where they are full."""
        vectors = self.vectors.with_room(self.count)
        if vectors is self.vectors:
            return vectors, self.projected
        projected = np.empty((vectors.capacity, *self.projected.shape[1:]), np.float16)
        projected[: self.count] = self.projected[: self.count]
        return vectors, projected

"""The item memory of one view: the bundle's items, and the items posted since.

The memory is persistent: `put` and `delete` return a new one that shares nearly everything with the
old one, in a time that grows with the logarithm of the number of items (`tombstones`,
`sorted_keys`).

Shapes: n queries, m items of each, d dimensions, M items in the bundle.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from heapq import merge
from itertools import islice

import numpy as np
from rpds import HashTrieMap

from service.core.bundle.item_files import ItemFiles
from service.core.index.protocol import RowFilter
from service.core.items.base_items import BaseItems, comparable
from service.core.items.posted_items import MemoryItem, PostedItems
from service.core.items.tombstones import Tombstones
from service.core.types import Floats, Halves, Rows

_BYTES_AN_ITEM = 700  # of main memory: its object, and its entries in the maps
# A key, and the key and value that are read, in fp16, twice: the storage of vectors is doubled when
# it is full, and may be half empty.
_BYTES_A_DIMENSION = 3 * 2 * 2
_DELETED = -1


@dataclass(frozen=True, kw_only=True)
class ItemMemory:
    """Items by place and by id. An item that is posted gets the next place, also one posted again.

    Only a bundle's item that has the bundle's text again gets its old place.

    `attended` is how many items a query attends to. The vector of a `posted` item is both its key
    and the value that is projected: it has no learned residual, and training pulls residuals to
    zero.
    `base_dead` are the bundle's items that were deleted or replaced. `live_bytes` estimates what
    was posted takes of main memory; a deleted item's vector stays until a snapshot.
    """

    base: BaseItems
    attended: int
    posted: PostedItems
    base_dead: Tombstones = field(default_factory=Tombstones)
    place_by_id: HashTrieMap[str, int] = field(default_factory=HashTrieMap)
    live_bytes: int = 0

    @classmethod
    def of(cls, files: ItemFiles) -> ItemMemory:
        """Return the memory of a bundle's items, to which nothing was posted."""
        base = BaseItems(files)
        return cls(
            base=base,
            attended=files.facts.attended,
            posted=PostedItems.none(first=base.count, dimension=base.dimension),
        )

    def __len__(self) -> int:
        """Return the number of items."""
        return self.base.count - self.base_dead.count + len(self.posted)

    @property
    def dead(self) -> int:
        """The number of items that were replaced or deleted and are still stored."""
        return self.base_dead.count + self.posted.dead.count

    def find(self, item_id: str) -> int | None:
        """Return the place of the item with this id, None if there is none."""
        place = self.place_by_id.get(item_id)
        if place is None:
            return self.base.find(item_id)
        return None if place == _DELETED else place

    def find_text(self, text: str) -> int | None:
        """Return the first place of an item with this text, whatever its case and spaces."""
        wanted = comparable(text)
        place = self.base.find_text(wanted, self.base_dead)
        return self.posted.find_text(wanted) if place is None else place

    def id_at(self, place: int) -> str:
        """Return the id of the item at `place`."""
        if place < self.base.count:
            return self.base.files.ids[place]
        return self.posted.by_place[int(place)].id  # the map takes no integer of numpy

    def text_at(self, place: int) -> str:
        """Return the text of the item at `place`."""
        if place < self.base.count:
            return self.base.files.texts[place]
        return self.posted.by_place[int(place)].text

    def put(self, item_id: str, text: str, vector: Halves, projected: Halves) -> ItemMemory:
        """Return a memory with this item; its key is `vector` [d], read as `projected` [2, d].

        A bundle's item that was replaced or deleted, and is put with the bundle's text again, has
        the bundle's key and value again: its value was learned for this text.
        """
        removed = self.delete(item_id)
        trained = self.base.find(item_id)
        if trained is not None and self.base.files.texts[trained] == text:
            return replace(
                removed,
                base_dead=removed.base_dead.without(trained),
                place_by_id=removed.place_by_id.insert(item_id, trained),
            )
        size = bytes_of_memory_item(item_id, text, dimension=self.base.dimension)
        return replace(
            removed,
            posted=removed.posted.append(item_id, text, vector, projected),
            place_by_id=removed.place_by_id.insert(item_id, removed.posted.stop),
            live_bytes=self.live_bytes + size,
        )

    def delete(self, item_id: str) -> ItemMemory:
        """Return a memory without the item of this id; the same memory if there is none."""
        place = self.find(item_id)
        if place is None:
            return self
        smaller = replace(self, place_by_id=self.place_by_id.insert(item_id, _DELETED))
        if place < self.base.count:
            return replace(smaller, base_dead=self.base_dead.with_dead(place))
        return replace(smaller, posted=self.posted.without(self.posted.by_place[place]))

    def scanned(self) -> ItemMemory:
        """Return the same items without indexes over posted ones: all of these are scanned.

        Other processes may have other indexes at the same version, and so may a restart.
        """
        posted = self.posted.scanned()
        return self if posted is self.posted else replace(self, posted=posted)

    def nearest(self, queries: Floats, count: int) -> tuple[Floats, Rows]:
        """Return similarities and places [n, count] of the items nearest to queries [n, d].

        They descend; equal ones are ordered by place. Where there are fewer items than `count`,
        the place is -1. Every query is searched alone, so other queries do not change its bits.
        """
        similarities = np.full((len(queries), count), -np.inf, np.float32)
        places = np.full((len(queries), count), -1, np.int64)
        for row, query in enumerate(queries):
            found, at = self.nearest_of_one(query[None], count)
            similarities[row, : len(at)], places[row, : len(at)] = found, at
        return similarities, places

    def nearest_of_one(self, query: Floats, count: int) -> tuple[Floats, Rows]:
        """Return what `nearest` does for one query [1, d], without places that hold no item."""
        similarities, places = self.base.search(query, count, self.base_alive)
        if len(self.posted):
            others, at = self.posted.search(query, count)
            similarities = np.concatenate([similarities, others])
            places = np.concatenate([places, at])
        order = np.lexsort((places, -similarities))[:count]
        return similarities[order], places[order]

    def keys(self, places: Rows) -> Halves:
        """Return the keys [k, d] of the items at `places` [k]."""
        return self._read(self.base.files.keys, self.posted.vectors.matrix, places)

    def projected(self, places: Rows) -> Halves:
        """Return what queries read of the items at `places` [k]: keys and values [k, 2, d]."""
        return self._read(self.base.files.projected, self.posted.projected, places)

    def page(self, *, after: str, size: int) -> list[MemoryItem]:
        """Return the first `size` items with ids after `after`, by id."""
        of_base = self.base.ids_above(after, self.base_alive)
        posted = self.posted.ids.above((after, sys.maxsize))
        return [
            MemoryItem(place=place, id=item_id, text=self.text_at(place))
            for item_id, place in islice(merge(of_base, posted), size)
        ]

    def as_files(self) -> ItemFiles:
        """Return all items as the files of a bundle, in the order of their places.

        Those of the bundle itself, with their index, where nothing was posted or deleted.
        """
        files, places = self.base.files, np.array(list(self._places()), np.int64)
        if not self.posted.count and not self.base_dead.count:
            return files
        return replace(
            files,
            facts=replace(files.facts, items=len(places), index=None),
            ids=[self.id_at(place) for place in places.tolist()],
            texts=[self.text_at(place) for place in places.tolist()],
            keys=self.keys(places),
            projected=self.projected(places),
            index=None,
        )

    @cached_property
    def base_alive(self) -> RowFilter:
        """Which of the bundle's items are alive."""
        alive = self.base_dead.alive(self.base.count)
        return RowFilter(start=0, stop=self.base.count, alive=alive)

    def _read(self, of_base: Halves, of_posted: Halves, places: Rows) -> Halves:
        if not self.posted.count:
            found: Halves = of_base[places]
            return found
        vectors = np.empty((len(places), *of_base.shape[1:]), np.float16)
        based = places < self.base.count
        vectors[based] = of_base[places[based]]
        vectors[~based] = of_posted[places[~based] - self.base.count]
        return vectors

    def _places(self) -> Iterator[int]:
        yield from np.flatnonzero(self.base_alive.mask()).tolist()
        yield from self.posted.places()


def bytes_of_memory_item(item_id: str, text: str, *, dimension: int) -> int:
    """Estimate what a posted item takes of main memory."""
    texts = len(item_id.encode()) + len(text.encode())
    return _BYTES_AN_ITEM + texts + _BYTES_A_DIMENSION * dimension

"""The item memory of one view: the bundle's items, and the items posted since.

The memory is persistent: `put` and `delete` return a new one that shares nearly everything with the
old one. As with live rows, there is one writer: it appends to the newest memory only.

Shapes: n queries, m items of each, d dimensions, M items in the bundle.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
from rpds import HashTrieMap

from service.core.bundle.item_files import ItemFiles
from service.core.index.exact import LiveVectors
from service.core.index.protocol import RowFilter
from service.core.items.base_items import BaseItems, comparable
from service.core.types import Bools, Floats, Halves, Rows

_BYTES_AN_ITEM = 600  # of main memory: its object, and its entries in the maps
_DELETED = -1
_FIRST_CAPACITY = 64  # places for posted items; doubled when they are used up


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryItem:
    """One item; `place` is its number in the memory, which no other item ever gets."""

    place: int
    id: str
    text: str


@dataclass(frozen=True, kw_only=True)
class ItemMemory:
    """Items by place and by id. An item that is posted gets the next place, also one posted again.

    `attended` is how many items a query attends to. `vectors` holds the posted items' keys, which
    are their values too: a new item has no learned residual, and training pulls residuals to zero.
    `alive` [places] tells which places hold an item. `live_bytes` estimates what was posted takes
    of main memory; a deleted item's vector stays until a snapshot.
    """

    base: BaseItems
    attended: int
    vectors: LiveVectors
    alive: Bools
    live: HashTrieMap[int, MemoryItem] = field(default_factory=HashTrieMap)
    place_by_id: HashTrieMap[str, int] = field(default_factory=HashTrieMap)
    live_bytes: int = 0

    @classmethod
    def of(cls, files: ItemFiles) -> ItemMemory:
        """Return the memory of a bundle's items, to which nothing was posted."""
        base = BaseItems(files)
        return cls(
            base=base,
            attended=files.facts.attended,
            vectors=LiveVectors(capacity=_FIRST_CAPACITY, dimension=base.dimension),
            alive=np.ones(base.count, bool),
        )

    def __len__(self) -> int:
        """Return the number of items."""
        return int(self.alive.sum())

    def find(self, item_id: str) -> int | None:
        """Return the place of the item with this id, None if there is none."""
        place = self.place_by_id.get(item_id)
        if place is None:
            return self.base.find(item_id)
        return None if place == _DELETED else place

    def find_text(self, text: str) -> int | None:
        """Return the place of an item with this text, whatever its case and spaces.

        Of the bundle's items with the same text only the first one is seen.
        """
        place = self.base.find_text(text)
        if place is not None and self.alive[place]:
            return place
        wanted = comparable(text)
        posted = (place for place, item in self.live.items() if comparable(item.text) == wanted)
        return min(posted, default=None)

    def id_at(self, place: int) -> str:
        """Return the id of the item at `place`."""
        return self.base.files.ids[place] if place < self.base.count else self.live[int(place)].id

    def text_at(self, place: int) -> str:
        """Return the text of the item at `place`."""
        if place < self.base.count:
            return self.base.files.texts[place]
        return self.live[int(place)].text  # the map takes no integer of numpy

    def put(self, item_id: str, text: str, vector: Halves) -> ItemMemory:
        """Return a memory with this item, whose key and value are `vector` [d]."""
        place, removed = len(self.alive), self.delete(item_id)
        vectors = _with_room(self.vectors, place - self.base.count)
        vectors.write(place - self.base.count, vector[None].astype(np.float16))
        return replace(
            removed,
            vectors=vectors,
            alive=np.append(removed.alive, True),
            live=removed.live.insert(place, MemoryItem(place=place, id=item_id, text=text)),
            place_by_id=removed.place_by_id.insert(item_id, place),
            live_bytes=self.live_bytes + self._bytes_of(item_id, text),
        )

    def delete(self, item_id: str) -> ItemMemory:
        """Return a memory without the item of this id; the same memory if there is none."""
        place = self.find(item_id)
        if place is None:
            return self
        alive = self.alive.copy()
        alive[place] = False
        return replace(
            self,
            alive=alive,
            live=self.live.discard(place),
            place_by_id=self.place_by_id.insert(item_id, _DELETED),
        )

    def nearest(self, queries: Floats, count: int) -> tuple[Floats, Rows]:
        """Return similarities and places [n, count] of the items nearest to queries [n, d].

        They descend; equal ones are ordered by place. Where there are fewer items than `count`,
        the place is -1. Every query is searched alone, so other queries do not change its bits.
        """
        similarities = np.full((len(queries), count), -np.inf, np.float32)
        places = np.full((len(queries), count), -1, np.int64)
        for row, query in enumerate(queries):
            found, at = self._nearest_of_one(query[None], count)
            similarities[row, : len(at)], places[row, : len(at)] = found, at
        return similarities, places

    def keys(self, places: Rows) -> Halves:
        """Return the keys [k, d] of the items at `places` [k]."""
        return self._read(self.base.files.keys, places)

    def values(self, places: Rows) -> Halves:
        """Return the values [k, d] of the items at `places` [k]."""
        return self._read(self.base.files.values, places)

    def page(self, *, after: str, size: int) -> list[MemoryItem]:
        """Return the first `size` items with ids after `after`, by id."""
        ids = ((self.id_at(place), place) for place in self._places())
        chosen = sorted(pair for pair in ids if pair[0] > after)[:size]
        return [
            MemoryItem(place=place, id=item_id, text=self.text_at(place))
            for item_id, place in chosen
        ]

    def as_files(self) -> ItemFiles:
        """Return all items as the files of a bundle, in the order of their places."""
        places = np.flatnonzero(self.alive)
        files = self.base.files
        return ItemFiles(
            facts=replace(files.facts, items=len(places)),
            ids=[self.id_at(place) for place in places.tolist()],
            texts=[self.text_at(place) for place in places.tolist()],
            keys=self.keys(places),
            values=self.values(places),
            fusion=files.fusion,
        )

    def _nearest_of_one(self, query: Floats, count: int) -> tuple[Floats, Rows]:
        border = self.base.count
        parts = [
            _search(self.base.keys, query, count, self.alive[:border], first=0),
            _search(self.vectors, query, count, self.alive[border:], first=border),
        ]
        similarities = np.concatenate([part[0] for part in parts])
        places = np.concatenate([part[1] for part in parts])
        order = np.lexsort((places, -similarities))[:count]
        return similarities[order], places[order]

    def _read(self, of_base: Halves, places: Rows) -> Halves:
        vectors = np.empty((len(places), self.base.dimension), np.float16)
        based = places < self.base.count
        vectors[based] = of_base[places[based]]
        vectors[~based] = self.vectors.read(places[~based] - self.base.count)
        return vectors

    def _bytes_of(self, item_id: str, text: str) -> int:
        return bytes_of_memory_item(item_id, text, dimension=self.base.dimension)

    def _places(self) -> Iterator[int]:
        return iter(np.flatnonzero(self.alive).tolist())


def _search(
    vectors: LiveVectors, query: Floats, count: int, alive: Bools, *, first: int
) -> tuple[Floats, Rows]:
    """The nearest of the rows that are alive, numbered from `first`: similarities and places."""
    living = int(alive.sum())
    if not living:
        return np.zeros(0, np.float32), np.zeros(0, np.int64)
    bits = None if living == len(alive) else np.packbits(alive, bitorder="little")
    row_filter = RowFilter(start=0, stop=len(alive), alive=bits)
    similarities, rows = vectors.search(query, count=min(count, living), row_filter=row_filter)
    return similarities[0], rows[0] + first


def bytes_of_memory_item(item_id: str, text: str, *, dimension: int) -> int:
    """Estimate what a posted item takes of main memory."""
    return _BYTES_AN_ITEM + len(item_id.encode()) + len(text.encode()) + 2 * dimension


def _with_room(vectors: LiveVectors, used: int) -> LiveVectors:
    """`vectors`, or a copy of its first `used` rows with twice the capacity where it is full."""
    if used < vectors.capacity:
        return vectors
    larger = LiveVectors(capacity=2 * vectors.capacity, dimension=vectors.matrix.shape[1])
    larger.write(0, vectors.matrix[:used])
    return larger

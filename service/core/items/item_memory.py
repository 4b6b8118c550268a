"""The item memory of one view: the bundle's items, and the items posted since.

The memory is persistent: `put` and `delete` return a new memory that shares nearly everything with
the old one. Their time grows with the logarithm of the number of items (`persistent_sets`).

Shapes: m items, d dimensions.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from heapq import merge
from itertools import islice
from operator import itemgetter

import numpy as np
from rpds import HashTrieMap

from service.core.bundle.item_files import ItemFiles
from service.core.changes import DeleteItem, PutItem
from service.core.files.text_store import TextStore
from service.core.index.compaction import SegmentPlan, plan_merges, unsealed
from service.core.index.exact import LiveVectors
from service.core.index.protocol import RowFilter, Tombstones
from service.core.items.fusion import OnnxFusion
from service.core.items.posted_items import MemoryItem, PostedItems
from service.core.page_cursor import FIRST_PAGE, PageCursor
from service.core.text_identity import IdentityLookup, free_id, identity
from service.core.types import Floats, Halves, NewItem, Rows

_BYTES_AN_ITEM = 700  # of main memory per item: its object, and its entries in the maps
# Three fp16 numbers (the key, and the projected key and value), times two: the storage of vectors
# doubles when it is full, so it may be half empty.
_BYTES_A_DIMENSION = 3 * 2 * 2
_DELETED = -1


class BaseItems:
    """The items of a bundle, found by id, by text or by vector.

    They are searched through the bundle's index of items, or scanned if there is none.
    """

    def __init__(self, files: ItemFiles) -> None:
        """Load the fusion, and copy the keys into memory if they will be scanned.

        Raises `BundleAltered` if a file of the fusion is not an ONNX graph.
        """
        self.files, self.fusion = files, OnnxFusion(files.fusion)
        self._identities = IdentityLookup(files.texts)
        self.count, self.dimension = (int(size) for size in files.keys.shape)
        self._scanned: LiveVectors | None = None
        if files.index is None:
            self._scanned = LiveVectors(capacity=self.count, dimension=self.dimension)
            if self.count:
                self._scanned.write(0, files.keys)

    def prepare(self) -> None:
        """Build the table of texts now, not at the first request that names one."""
        self._identities.prepare()

    def find(self, item_id: str) -> int | None:
        """Return the place of the item with this id, or None."""
        return self._ids.find(item_id)

    def find_text(self, text_identity: str, dead: Tombstones) -> int | None:
        """Return the first place, unless in `dead`, of an item whose text has this identity."""
        places = self._identities.places(text_identity)
        return next((place for place in places if place not in dead), None)

    def ids_above(self, item_id: str, alive: RowFilter) -> Iterator[tuple[str, int]]:
        """Yield id and place of the `alive` items whose id is above `item_id`, ascending by id."""
        return self._ids.above(item_id, lambda places: alive.allows(places.astype(np.int64)))

    def search(self, query: Floats, count: int, alive: RowFilter) -> tuple[Floats, Rows]:
        """Return similarities and places [at most count] of the items nearest to a query [1, d].

        Only places that `alive` allows are returned.
        """
        count, index = min(count, self.count), self.files.index
        if not count:
            return np.zeros(0, np.float32), np.zeros(0, np.int64)
        row_filter = None if alive.alive is None else alive
        if self._scanned is not None:
            similarities, places = self._scanned.search(query, count=count, row_filter=row_filter)
        elif index is not None:
            similarities, places = index.segment.search(
                query, count=count, ef=index.facts.ef, row_filter=row_filter
            )
        found = places[0] >= 0
        return similarities[0][found], places[0][found]

    @property
    def _ids(self) -> TextStore:
        """The ids with lookup, which the items of an open bundle have."""
        assert isinstance(self.files.ids, TextStore)
        return self.files.ids


@dataclass(frozen=True, kw_only=True)
class ItemMemory:
    """Items by place and by id.

    Each posted item gets the next place, even one that is posted again. The only exception is a
    bundle's item that gets the bundle's text back: it returns to its old place. A `posted` item's
    vector is both its key and the value that is projected, because it has no learned residual.

    A query attends to `attended` items. `plans` say which posted items belong in one index.
    `base_dead` marks the bundle's items that were deleted or replaced. `live_bytes` estimates the
    main memory of posted items. A deleted item's vector stays until a snapshot.
    """

    base: BaseItems
    attended: int
    posted: PostedItems
    base_dead: Tombstones
    place_by_id: HashTrieMap[str, int] = field(default_factory=HashTrieMap)
    live_bytes: int = 0
    plans: tuple[SegmentPlan, ...] = ()

    @classmethod
    def of(cls, files: ItemFiles) -> ItemMemory:
        """Return the memory of a bundle's items, without posted items."""
        base = BaseItems(files)
        return cls(
            base=base,
            attended=files.facts.attended,
            posted=PostedItems.none(first=base.count, dimension=base.dimension),
            base_dead=Tombstones(size=base.count),
        )

    def __len__(self) -> int:
        """Return the number of items."""
        return self.base.count - self.base_dead.count + len(self.posted)

    @property
    def dead(self) -> int:
        """The number of items that were replaced or deleted and are still stored."""
        return self.base_dead.count + self.posted.live.dead_rows

    def find(self, item_id: str) -> int | None:
        """Return the place of the item with this id, or None."""
        place = self.place_by_id.get(item_id)
        if place is None:
            return self.base.find(item_id)
        return None if place == _DELETED else place

    def find_text(self, text: str) -> int | None:
        """Return the first place of an item whose text has the same identity (`text_identity`)."""
        wanted = identity(text)
        place = self.base.find_text(wanted, self.base_dead)
        return self.posted.texts.first(wanted) if place is None else place

    def identified(self, item: NewItem) -> NewItem:
        """Return an item that is about to be put, with its id.

        Without an id, it gets id and spelling of the known item of the same text, which keeps what
        training learned. If there is none, its id is the identity of its text (`free_id`).
        """
        if item.id:
            return item
        place = self.find_text(item.text)
        if place is not None:
            return NewItem(id=self.id_at(place), text=self.text_at(place))
        made = free_id(identity(item.text), taken=lambda made: self.find(made) is not None)
        return NewItem(id=made, text=item.text)

    def id_at(self, place: int) -> str:
        """Return the id of the item at `place`."""
        if place < self.base.count:
            return self.base.files.ids[place]
        return self.posted.by_place[int(place)].id  # the map does not accept numpy's integers

    def text_at(self, place: int) -> str:
        """Return the text of the item at `place`."""
        if place < self.base.count:
            return self.base.files.texts[place]
        return self.posted.by_place[int(place)].text

    def apply(self, change: PutItem | DeleteItem, *, seal_items: int, fan_out: int) -> ItemMemory:
        """Return the memory after a change of the log, with a plan for each full block of items.

        An item that has its text already is not put: a trained one would lose its learned value.
        """
        if isinstance(change, DeleteItem):
            return self.delete(change.id)
        item, place = change.item, self.find(change.item.id)
        if place is not None and self.text_at(place) == item.text:
            return self
        [projected] = self.base.fusion.project(change.vectors[:1])
        changed = self.put(item.id, item.text, change.vectors[0], projected)
        posted = changed.posted
        # A bundle's item that gets its own text back is not a posted one.
        if posted.count == self.posted.count or posted.count % seal_items:
            return changed
        full = [(posted.count - seal_items, posted.count)]
        plans = plan_merges(self.plans, full, alive_rows=posted.alive_rows, fan_out=fan_out)
        return replace(changed, plans=plans)

    def unsealed_plans(self) -> Iterator[SegmentPlan]:
        """Yield the plans whose index is not attached yet."""
        return unsealed(self.plans, self.posted.sealed)

    def put(self, item_id: str, text: str, vector: Halves, projected: Halves) -> ItemMemory:
        """Return a memory with this item. Its key is `vector` [d]; queries read `projected` [2, d].

        If a bundle's item gets the bundle's text back, it also gets its key and value back, because
        the value was learned for this text.
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
        """Return a memory without the item with this id, or the same memory if there is none."""
        place = self.find(item_id)
        if place is None:
            return self
        smaller = replace(self, place_by_id=self.place_by_id.insert(item_id, _DELETED))
        if place < self.base.count:
            return replace(smaller, base_dead=self.base_dead.with_dead([place]))
        return replace(smaller, posted=self.posted.without(self.posted.by_place[place]))

    def scanned(self) -> ItemMemory:
        """Return the items without indexes over posted ones, which other processes may lack."""
        posted = self.posted.scanned()
        return self if posted is self.posted else replace(self, posted=posted)

    def nearest(self, query: Floats, count: int) -> tuple[Floats, Rows]:
        """Return similarities and places, [at most count], of the items nearest to a query [1, d].

        Similarities descend; ties are ordered by place.
        """
        found = [self.base.search(query, count, self.base_alive), *self.posted.search(query, count)]
        similarities = np.concatenate([similarities for similarities, _ in found])
        places = np.concatenate([places for _, places in found])
        order = np.lexsort((places, -similarities))[:count]
        return similarities[order], places[order]

    def keys(self, places: Rows) -> Halves:
        """Return the keys [k, d] of the items at `places` [k]."""
        return self._read(self.base.files.keys, self.posted.vectors.matrix, places)

    def projected(self, places: Rows) -> Halves:
        """Return what queries read of the items at `places` [k]: keys and values [k, 2, d]."""
        return self._read(self.base.files.projected, self.posted.projected, places)

    def page(self, *, after: PageCursor = FIRST_PAGE, size: int) -> list[MemoryItem]:
        """Return the first `size` items after the cursor `after`, by id."""
        of_base = self.base.ids_above(after.prefix, self.base_alive)
        posted = self.posted.ids.above((after.prefix, sys.maxsize))
        following = after.skip(merge(of_base, posted), id_of=itemgetter(0))
        return [
            MemoryItem(place=place, id=item_id, text=self.text_at(place))
            for item_id, place in islice(following, size)
        ]

    def as_files(self) -> ItemFiles:
        """Return all items as the files of a bundle, in the order of their places.

        If nothing was posted or deleted, this returns the bundle's own files, with their index.
        """
        files, base = self.base.files, self.base_dead.alive_places(self.base.count)
        if not self.posted.count and not self.base_dead.count:
            return files
        places = np.concatenate([base, self.posted.live.alive_rows() + self.base.count])
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
        """A filter that passes the bundle's alive items."""
        return RowFilter(start=0, stop=self.base.count, alive=self.base_dead.alive)

    def _read(self, of_base: Halves, of_posted: Halves, places: Rows) -> Halves:
        if not self.posted.count:
            found: Halves = of_base[places]
            return found
        vectors = np.empty((len(places), *of_base.shape[1:]), np.float16)
        based = places < self.base.count
        vectors[based] = of_base[places[based]]
        vectors[~based] = of_posted[places[~based] - self.base.count]
        return vectors


def bytes_of_memory_item(item_id: str, text: str, *, dimension: int) -> int:
    """Estimate the main memory that a posted item takes."""
    texts = len(item_id.encode()) + len(text.encode())
    return _BYTES_AN_ITEM + texts + _BYTES_A_DIMENSION * dimension

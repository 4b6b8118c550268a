"""The items of a bundle, which every version of an item memory shares.

Shapes: m items, d dimensions, M items of the bundle.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from functools import cached_property

import numpy as np

from service.core.bundle.item_files import ItemFiles
from service.core.files.text_store import TextStore
from service.core.index.exact import LiveVectors
from service.core.index.protocol import RowFilter, batches
from service.core.items.tombstones import Tombstones
from service.core.types import Floats, Halves, Indices, Rows

_PAGE_PLACES = 1_024  # of the order of ids that are looked at together


def comparable(text: str) -> str:
    """`text` as item texts are compared: without case, and with single spaces."""
    return " ".join(text.casefold().split())


class BaseItems:
    """The items of a bundle, found by id, by text or by vector.

    They are searched through the bundle's index of items, or all of them are scanned where it has
    none.
    """

    def __init__(self, files: ItemFiles) -> None:
        """Copy the keys into memory if they are to be scanned."""
        self.files = files
        self.count, self.dimension = (int(size) for size in files.keys.shape)
        self._scanned: LiveVectors | None = None
        if files.index is None:
            self._scanned = LiveVectors(capacity=self.count, dimension=self.dimension)
            if self.count:
                self._scanned.write(0, files.keys)

    def prepare(self) -> None:
        """Make the table for texts now, and not when the first request names one."""
        _ = self._by_text

    def find(self, item_id: str) -> int | None:
        """Return the place of the item with this id, None if the bundle has none."""
        ids = self.files.ids
        return ids.find(item_id) if isinstance(ids, TextStore) else self._place_by_id.get(item_id)

    def find_text(self, text: str, dead: Tombstones) -> int | None:
        """Return the first place that is not dead of an item with this comparable text."""
        hashes, places = self._by_text
        first, stop = (np.searchsorted(hashes, hash(text), side) for side in ("left", "right"))
        for place in places[first:stop].tolist():
            if place not in dead and comparable(self.files.texts[place]) == text:
                return int(place)
        return None

    def ids_above(self, item_id: str, alive: RowFilter) -> Iterator[tuple[str, int]]:
        """Yield id and place of the items with ids greater than `item_id`, ascending by id.

        Only places that `alive` allows are among them.
        """
        ids, order = self.files.ids, self._order
        if isinstance(ids, TextStore):
            first = ids.place_above(item_id)
        else:
            first = bisect_right(order, item_id, key=lambda place: ids[place])
        for batch in batches(self.count - first, _PAGE_PLACES):
            places = order[first + batch.start : first + batch.stop].astype(np.int64)
            for place in places[alive.allows(places)].tolist():
                yield ids[place], place

    def search(self, query: Floats, count: int, alive: RowFilter) -> tuple[Floats, Rows]:
        """Return similarities and places [at most count] of the items nearest to a query [1, d].

        Only places that `alive` allows are among them.
        """
        count, index = min(count, self.count), self.files.index
        if not count:
            return np.zeros(0, np.float32), np.zeros(0, np.int64)
        if self._scanned is not None:
            similarities, places = self._scanned.search(query, count=count, row_filter=alive)
        elif index is not None:
            similarities, places = index.segment.search(
                query,
                count=count,
                ef=index.facts.ef,
                row_filter=None if alive.alive is None else alive,
            )
        found = places[0] >= 0
        return similarities[0][found], places[0][found]

    def keys(self, places: Rows) -> Halves:
        """Return the keys [m, d] of the items at `places` [m]."""
        keys: Halves = self.files.keys[places]
        return keys

    def values(self, places: Rows) -> Halves:
        """Return the values [m, d] of the items at `places` [m]."""
        values: Halves = self.files.values[places]
        return values

    @cached_property
    def _order(self) -> Indices:
        """The places [M] in ascending order of their ids."""
        ids = self.files.ids
        if isinstance(ids, TextStore):
            return ids.order
        return np.array(sorted(range(self.count), key=ids.__getitem__), np.int32)

    @cached_property
    def _place_by_id(self) -> dict[str, int]:
        return {item_id: place for place, item_id in enumerate(self.files.ids)}

    @cached_property
    def _by_text(self) -> tuple[Rows, Indices]:
        """Hashes of the comparable texts, ascending, and their places [M]: 12 bytes an item.

        A dict of the texts would take ten times the memory in each process.
        """
        hashes = np.fromiter((hash(comparable(text)) for text in self.files.texts), np.int64)
        order = np.argsort(hashes, kind="stable").astype(np.int32)
        return hashes[order], order

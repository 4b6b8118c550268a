"""The items of a bundle, which every version of an item memory shares."""

from __future__ import annotations

from functools import cached_property

from service.core.bundle.item_files import ItemFiles
from service.core.files.text_store import TextStore
from service.core.index.exact import LiveVectors


def comparable(text: str) -> str:
    """`text` as item texts are compared: without case, and with single spaces."""
    return " ".join(text.casefold().split())


class BaseItems:
    """The items of a bundle, found by id or by text, and their keys for the search."""

    def __init__(self, files: ItemFiles) -> None:
        """Copy the keys into the memory that is searched."""
        self.files = files
        self.count, self.dimension = files.keys.shape
        self.keys = LiveVectors(capacity=self.count, dimension=self.dimension)
        if self.count:
            self.keys.write(0, files.keys)

    def find(self, item_id: str) -> int | None:
        """Return the place of the item with this id, None if the bundle has none."""
        ids = self.files.ids
        return ids.find(item_id) if isinstance(ids, TextStore) else self._place_by_id.get(item_id)

    def find_text(self, text: str) -> int | None:
        """Return the first place of an item with this text, None if the bundle has none."""
        return self._place_by_text.get(comparable(text))

    @cached_property
    def _place_by_id(self) -> dict[str, int]:
        return {item_id: place for place, item_id in enumerate(self.files.ids)}

    @cached_property
    def _place_by_text(self) -> dict[str, int]:
        places: dict[str, int] = {}
        for place, text in enumerate(self.files.texts):
            places.setdefault(comparable(text), place)
        return places

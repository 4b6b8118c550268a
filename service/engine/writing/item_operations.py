"""The writes to the item memory that clients can ask for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from service.core.changes import Item
from service.core.encoding.representer import EncodedItem
from service.core.errors import NotInBundle, UnknownItem, echoed
from service.core.items.item_memory import ItemMemory
from service.core.memory.draft import Draft
from service.core.types import NewItem
from service.engine.writing.commit import Commit
from service.engine.writing.written import Written, WrittenLabel


@dataclass(frozen=True, kw_only=True)
class PutItems:
    """Create or replace items, in order."""

    new_items: tuple[NewItem, ...]

    @property
    def items(self) -> Sequence[Item]:
        """The items, whose texts must be encoded."""
        return self.new_items

    def plan(self, commit: Commit, encoded_items: Sequence[EncodedItem | None]) -> Written:
        """Add the items that are not there as posted; raises `NotInBundle` or `MemoryFull`."""
        _required(commit.draft)
        commit.require_room(self.new_items)
        written = []
        for item, encoded in zip(self.new_items, encoded_items, strict=True):
            memory = _required(commit.draft)
            place = memory.find(item.id)
            if place is not None and memory.text_at(place) == item.text:
                written.append(WrittenLabel(id=item.id, status="unchanged"))
                continue
            commit.put_item(item, encoded)
            status = "created" if place is None else "updated"
            written.append(WrittenLabel(id=item.id, status=status))
        return Written(version=commit.version, labels=tuple(written))


@dataclass(frozen=True, kw_only=True)
class RemoveItem:
    """Delete an item."""

    id: str
    items: Sequence[Item] = ()

    def plan(self, commit: Commit, encoded_items: Sequence[EncodedItem | None]) -> Written:
        """Delete the item; raises `NotInBundle` or `UnknownItem`."""
        if _required(commit.draft).find(self.id) is None:
            raise UnknownItem(f"no item has the id {echoed(self.id)}", field="id")
        commit.delete_item(self.id)
        return Written(version=commit.version)


def _required(draft: Draft) -> ItemMemory:
    if draft.items is None:
        raise NotInBundle("item memory", field="items")
    return draft.items

"""One commit: several requests' changes, planned on one draft and logged in one transaction."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from service.core.changes import (
    Change,
    DeleteItem,
    DeleteLabel,
    Item,
    PutInstance,
    PutItem,
    PutLabel,
)
from service.core.encoding.representer import EncodedItem, Neighbour, Representer
from service.core.memory.draft import Draft
from service.core.replay import texts_of
from service.core.types import NewInstance, NewItem, NewLabel


class Commit:
    """Collects changes and applies each to a draft of the next view as it is added."""

    def __init__(
        self,
        draft: Draft,
        *,
        representer: Representer,
        require_room: Callable[[Draft, Sequence[Item]], None],
    ) -> None:
        """`require_room` raises `MemoryFull` unless the items fit into the draft."""
        self.draft = draft
        self.changes: list[Change] = []
        self._representer, self._require_room = representer, require_room

    @property
    def version(self) -> int:
        """The memory version that holds everything so far."""
        return self.draft.version

    def require_room(self, items: Sequence[Item]) -> None:
        """Raise `MemoryFull` unless `items` fit."""
        self._require_room(self.draft, items)

    def put_label(self, label: NewLabel, encoded: EncodedItem | None) -> tuple[Neighbour, ...]:
        """Create or replace a label, encoding it here where `encoded` is None.

        Returns the neighbours that enriched it and still exist: the classifier of a deleted label
        goes on to enrich others, but is not named to clients.
        """
        encoded = encoded or self._encode(label)
        self._add(PutLabel(sequence=self.version + 1, label=label, vectors=encoded.rows))
        labels = self.draft.labels
        return tuple(
            neighbour for neighbour in encoded.neighbours if labels.column(neighbour.id) is not None
        )

    def put_instance(self, instance: NewInstance, encoded: EncodedItem | None) -> None:
        """Add a query with its labels, encoding it here where `encoded` is None."""
        encoded = encoded or self._encode(instance)
        self._add(PutInstance(sequence=self.version + 1, instance=instance, vectors=encoded.rows))

    def delete_label(self, label_id: str) -> None:
        """Delete a label."""
        self._add(DeleteLabel(sequence=self.version + 1, id=label_id))

    def put_item(self, item: NewItem, encoded: EncodedItem | None) -> None:
        """Create or replace an item of the item memory, encoding it here if `encoded` is None."""
        encoded = encoded or self._encode(item)
        self._add(PutItem(sequence=self.version + 1, item=item, vectors=encoded.rows))

    def delete_item(self, item_id: str) -> None:
        """Delete an item of the item memory."""
        self._add(DeleteItem(sequence=self.version + 1, id=item_id))

    def _encode(self, item: Item) -> EncodedItem:
        [encoded] = self._representer.encode([texts_of(item)])
        return encoded

    def _add(self, change: Change) -> None:
        self.draft.apply([change])
        self.changes.append(change)

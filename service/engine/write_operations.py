"""What clients can ask of the writer; each plans its events against the memory as it will be."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any, Protocol

from service.core.encoding.representer import EncodedItem, Neighbour, Representer
from service.core.errors import UnknownLabels
from service.core.label_log import NewEvent
from service.core.memory.changes import Change, DeleteLabel, PutInstance, PutLabel
from service.core.memory.draft import Draft
from service.core.memory.label_table import LabelTable
from service.core.replay import (
    Item,
    deletion_event,
    instance_event,
    label_event,
    rows_of,
    texts_of,
)
from service.core.types import NewInstance, NewLabel


@dataclass(frozen=True, kw_only=True)
class WrittenLabel:
    """What became of a label: created, updated or unchanged, and what enriched it."""

    id: str
    status: str
    neighbours: tuple[Neighbour, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Written:
    """The memory version that holds the request, and what became of its parts."""

    version: int
    labels: tuple[WrittenLabel, ...] = ()
    accepted: int = 0


class Commit:
    """What one transaction adds to the log, applied to a draft of the next view as it grows."""

    def __init__(
        self, draft: Draft, *, representer: Representer, room: Callable[[Draft, int], None]
    ):
        self.draft = draft
        self.events: list[NewEvent] = []
        self._representer, self._room = representer, room

    @property
    def version(self) -> int:
        """The memory version that holds everything so far."""
        return self.draft.version

    def require_room(self, items: Sequence[Item]) -> None:
        """Raise `MemoryFull` unless the rows of `items` fit."""
        self._room(self.draft, sum(rows_of(item) for item in items))

    def put_label(self, label: NewLabel, encoded: EncodedItem | None) -> tuple[Neighbour, ...]:
        """Create or replace a label; encodes it here unless that was done before."""
        encoded = encoded or self._encode(label)
        change = PutLabel(sequence=self.version + 1, label=label, vectors=encoded.rows)
        self._add(label_event(label, encoded.rows), change)
        return tuple(self._named(encoded.neighbours))

    def put_instance(self, instance: NewInstance, encoded: EncodedItem | None) -> None:
        """Add a query with its labels."""
        encoded = encoded or self._encode(instance)
        change = PutInstance(sequence=self.version + 1, instance=instance, vectors=encoded.rows)
        self._add(instance_event(instance, encoded.rows), change)

    def delete_label(self, label_id: str) -> None:
        """Delete a label."""
        change = DeleteLabel(sequence=self.version + 1, id=label_id)
        self._add(deletion_event(label_id), change)

    def _encode(self, item: Item) -> EncodedItem:
        [encoded] = self._representer.encode([texts_of(item)])
        return encoded

    def _named(self, neighbours: Sequence[Neighbour]) -> Iterator[Neighbour]:
        """Those that are still there: a deleted label's classifier goes on to enrich, unnamed."""
        return (near for near in neighbours if self.draft.labels.column(near.id) is not None)

    def _add(self, event: NewEvent, change: Change) -> None:
        self.draft.apply([change])
        self.events.append(event)


class Operation(Protocol):
    """One request's write; applied whole or, where `plan` raises, not at all."""

    @property
    def items(self) -> Sequence[Item]:
        """What has to be encoded."""
        ...

    def plan(self, commit: Commit, encoded_items: Sequence[EncodedItem | None]) -> Written:
        """Add events to the commit; one encoded item or None for each item."""
        ...


@dataclass(frozen=True, kw_only=True)
class PutLabels:
    """Create or replace labels, in order."""

    labels: tuple[NewLabel, ...]

    @property
    def items(self) -> Sequence[Item]:
        """The labels."""
        return self.labels

    def plan(self, commit: Commit, encoded_items: Sequence[EncodedItem | None]) -> Written:
        """See `Operation`; a label that is there as posted is left alone."""
        commit.require_room(changed(self.labels, commit.draft.labels))
        fates = []
        for label, encoded in zip(self.labels, encoded_items, strict=True):
            known = commit.draft.labels.as_posted(label.id)
            if known == label:
                fates.append(WrittenLabel(id=label.id, status="unchanged"))
                continue
            status = "created" if known is None else "updated"
            neighbours = commit.put_label(label, encoded)
            fates.append(WrittenLabel(id=label.id, status=status, neighbours=neighbours))
        return Written(version=commit.version, labels=tuple(fates))


@dataclass(frozen=True, kw_only=True)
class RemoveLabel:
    """Delete a label."""

    id: str
    items: Sequence[Item] = ()

    def plan(self, commit: Commit, encoded_items: Sequence[EncodedItem | None]) -> Written:
        """See `Operation`; raises `UnknownLabel`."""
        commit.draft.labels.require(self.id)
        commit.delete_label(self.id)
        return Written(version=commit.version)


@dataclass(frozen=True, kw_only=True)
class PutInstances:
    """Add queries with the labels that they were clicked for."""

    instances: tuple[NewInstance, ...]

    @property
    def items(self) -> Sequence[Item]:
        """The instances."""
        return self.instances

    def plan(self, commit: Commit, encoded_items: Sequence[EncodedItem | None]) -> Written:
        """See `Operation`; raises `UnknownLabels`, naming every label that is not there."""
        self._require_labels(commit.draft.labels)
        commit.require_room(self.instances)
        for instance, encoded in zip(self.instances, encoded_items, strict=True):
            if not self._known(commit.draft, instance):
                commit.put_instance(instance, encoded)
        return Written(version=commit.version, accepted=len(self.instances))

    def _require_labels(self, table: LabelTable) -> None:
        unknown = [
            (f"instances.{place}.labels.{position}", f"no label has the id {label_id!r}")
            for place, instance in enumerate(self.instances)
            for position, label_id in enumerate(instance.labels)
            if table.column(label_id) is None
        ]
        if unknown:
            raise UnknownLabels(unknown)

    @staticmethod
    def _known(draft: Draft, instance: NewInstance) -> bool:
        """Whether this query votes for all these labels already: the click teaches nothing new."""
        voted = draft.votes_of(instance.query)
        return all(draft.labels.column(label_id) in voted for label_id in instance.labels)


def changed(items: Sequence[Item], table: LabelTable) -> list[Item]:
    """The items that are not in the memory as they are posted, as far as one can tell so soon."""
    return [
        item for item in items if isinstance(item, NewInstance) or table.as_posted(item.id) != item
    ]


def to_document(written: Written) -> Mapping[str, Any]:
    """An answer as the label log keeps it beside an idempotency key."""
    return {
        "labels": [
            [label.id, label.status, [astuple(near) for near in label.neighbours]]
            for label in written.labels
        ],
        "accepted": written.accepted,
    }


def from_document(version: int, document: Mapping[str, Any]) -> Written:
    """The answer that was given before."""
    labels = tuple(_label(*parts) for parts in document["labels"])
    return Written(version=version, labels=labels, accepted=document["accepted"])


def _label(name: str, status: str, near: Sequence[tuple[str, str, float]] = ()) -> WrittenLabel:
    """An answered label; answers from before there were neighbours hold none."""
    neighbours = tuple(
        Neighbour(id=own, text=text, similarity=similarity) for own, text, similarity in near
    )
    return WrittenLabel(id=name, status=status, neighbours=neighbours)

"""The writes that clients can ask for; each plans its changes on the draft of the next view."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from service.core.changes import Item
from service.core.encoding.representer import EncodedItem
from service.core.errors import KeymatchError, UnknownLabels, echoed
from service.core.memory.draft import Draft
from service.core.memory.label_table import LabelTable
from service.core.types import NewInstance, NewLabel
from service.engine.writing.commit import Commit
from service.engine.writing.written import Written, WrittenLabel

# Unknown ids that are looked for: one more than an answer names. To look up 100,000 takes seconds.
NAMED_LABELS = 101


class Operation(Protocol):
    """One request's write; applied as a whole, or not at all where `plan` raises."""

    @property
    def items(self) -> Sequence[Item]:
        """The labels or instances whose texts must be encoded."""
        ...

    def plan(self, commit: Commit, encoded_items: Sequence[EncodedItem | None]) -> Written:
        """Add changes to the commit; `encoded_items` match `items`, None where not encoded yet."""
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
        """Add the labels that the memory does not hold as posted; raises `MemoryFull`."""
        commit.require_room(changed(self.labels, commit.draft.labels))
        written = []
        for label, encoded in zip(self.labels, encoded_items, strict=True):
            known = commit.draft.labels.as_posted(label.id)
            if known == label:
                written.append(WrittenLabel(id=label.id, status="unchanged"))
                continue
            status = "created" if known is None else "updated"
            neighbours = commit.put_label(label, encoded)
            written.append(WrittenLabel(id=label.id, status=status, neighbours=neighbours))
        return Written(version=commit.version, labels=tuple(written))


@dataclass(frozen=True, kw_only=True)
class RemoveLabel:
    """Delete a label."""

    id: str
    items: Sequence[Item] = ()

    def plan(self, commit: Commit, encoded_items: Sequence[EncodedItem | None]) -> Written:
        """Delete the label; raises `UnknownLabel`."""
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
        """Add the instances that say something new.

        Raises `UnknownLabels`, naming the labels that do not exist, or `MemoryFull`.
        """
        require_labels(self.instances, commit.draft.labels)
        commit.require_room(self.instances)
        for instance, encoded in zip(self.instances, encoded_items, strict=True):
            if not self._known(commit.draft, instance):
                commit.put_instance(instance, encoded)
        return Written(version=commit.version, accepted=len(self.instances))

    @staticmethod
    def _known(draft: Draft, instance: NewInstance) -> bool:
        """Whether the query votes for all these labels already, with the weight of the click."""
        voted, weights = draft.votes_of(instance.query), draft.weights_of(instance.query)
        weight = instance.vote_weight
        columns = map(draft.labels.column, instance.labels)
        return all(
            column in voted and weights.get(column, 1.0) == weight
            for column in columns
            if column is not None  # a known label: the others were refused
        )


@dataclass(frozen=True, kw_only=True)
class RequireLabels:
    """Refuse instances of unknown labels without having encoded them; writes nothing."""

    instances: tuple[NewInstance, ...]
    items: Sequence[Item] = ()

    def plan(self, commit: Commit, encoded_items: Sequence[EncodedItem | None]) -> Written:
        """Raise `UnknownLabels`, or `LabelsKnown`: no answer, which would be remembered."""
        require_labels(self.instances, commit.draft.labels)
        raise LabelsKnown("all labels exist")


class LabelsKnown(KeymatchError):
    """`RequireLabels` has nothing to refuse."""


def require_labels(instances: Sequence[NewInstance], table: LabelTable) -> None:
    """Raise `UnknownLabels` for the first `NAMED_LABELS` that do not exist."""
    unknown = (
        (f"instances.{place}.labels.{position}", f"no label has the id {echoed(label_id)}")
        for place, instance in enumerate(instances)
        for position, label_id in enumerate(instance.labels)
        if table.column(label_id) is None
    )
    named = list(islice(unknown, NAMED_LABELS))
    if named:
        raise UnknownLabels(named)


def changed(items: Sequence[Item], table: LabelTable) -> list[Item]:
    """The instances, and the labels that `table` does not hold as posted."""
    return [
        item for item in items if isinstance(item, NewInstance) or table.as_posted(item.id) != item
    ]

"""The kinds of write, one class each: what a client's write becomes, and what the label log stores.

A change is built by the operation that a client asked for, or read back from an event of the label
log; the memory applies both alike. A new kind of write is a new class here and its line in
`CHANGES`; the memory says what it does to the rows (`Draft`).

| class         | kind           | body (JSON)                          | vectors, fp16    |
|---------------|----------------|--------------------------------------|------------------|
| `PutLabel`    | `label.put`    | `id`, `text`, `queries`, `metadata`  | [1 + queries, d] |
| `DeleteLabel` | `label.delete` | `id`                                 | none             |
| `PutInstance` | `instance.put` | `query`, `labels` (ids), `weight`    | [1, d]           |
| `PutItem`     | `item.put`     | `id`, `text`                         | [1, d]           |
| `DeleteItem`  | `item.delete`  | `id`                                 | none             |
| `UseBundle`   | `bundle.use`   | `bundle`, `configured`               | none             |

An instance's `weight` is left out where it is 1. All vectors are those of the encoder: the memory
fuses a query with the items that it holds at this point of the log, so a replay finds the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Self

import numpy as np

from service.core.types import Event, Halves, NewInstance, NewItem, NewLabel

Item = NewLabel | NewInstance | NewItem  # what can be posted
VectorsOf = Callable[[Item], Halves]  # an item's vectors [n, d], as stored or encoded again


@dataclass(frozen=True, kw_only=True, slots=True)
class PutLabel:
    """Create or replace a label; vectors [1 + queries, d] of its text, then of its queries."""

    kind: ClassVar[str] = "label.put"
    summary: ClassVar[tuple[str, ...]] = ("id", "text", "queries")

    sequence: int
    label: NewLabel
    vectors: Halves

    def body(self) -> Mapping[str, Any]:
        """What the label log stores beside the vectors."""
        return asdict(self.label)

    @classmethod
    def from_event(cls, event: Event, vectors_of: VectorsOf) -> Self:
        """Read the change back; raises KeyError, TypeError or ValueError for a wrong body."""
        label = NewLabel(**{**event.body, "queries": tuple(event.body["queries"])})
        return cls(sequence=event.sequence, label=label, vectors=vectors_of(label))


@dataclass(frozen=True, kw_only=True, slots=True)
class Deletion:
    """Delete what has this id; an id that nothing has changes nothing but the version."""

    kind: ClassVar[str]
    summary: ClassVar[tuple[str, ...]] = ("id",)

    sequence: int
    id: str

    @property
    def vectors(self) -> Halves:
        """None, [0, 0]."""
        return _no_vectors()

    def body(self) -> Mapping[str, Any]:
        """What the label log stores."""
        return {"id": self.id}

    @classmethod
    def from_event(cls, event: Event, vectors_of: VectorsOf) -> Self:
        """Read the change back; raises KeyError for a wrong body."""
        return cls(sequence=event.sequence, id=event.body["id"])


@dataclass(frozen=True, kw_only=True, slots=True)
class DeleteLabel(Deletion):
    """Delete a label."""

    kind: ClassVar[str] = "label.delete"


@dataclass(frozen=True, kw_only=True, slots=True)
class PutInstance:
    """Add a query with the labels that it was clicked for; vectors [1, d] of the query.

    Unknown labels get no vote: another bundle may have been opened since the write was logged. A
    label that was clicked for the query before gets the weight of this click.
    """

    kind: ClassVar[str] = "instance.put"
    summary: ClassVar[tuple[str, ...]] = ("query", "labels", "weight")

    sequence: int
    instance: NewInstance
    vectors: Halves

    def body(self) -> Mapping[str, Any]:
        """What the label log stores beside the vectors."""
        body = asdict(self.instance)
        if self.instance.weight == 1.0:
            del body["weight"]  # so logs without weights are the same as before there were any
        return body

    @classmethod
    def from_event(cls, event: Event, vectors_of: VectorsOf) -> Self:
        """Read the change back; raises KeyError, TypeError or ValueError for a wrong body."""
        weight = float(event.body.get("weight", 1.0))
        if not 0 < weight < math.inf:
            raise ValueError(f"a click weighs {weight}, which is no positive number")
        instance = NewInstance(
            query=event.body["query"], labels=tuple(event.body["labels"]), weight=weight
        )
        return cls(sequence=event.sequence, instance=instance, vectors=vectors_of(instance))


@dataclass(frozen=True, kw_only=True, slots=True)
class PutItem:
    """Create or replace an item of the item memory; vectors [1, d] of its text.

    Without an item memory it changes nothing but the version.
    """

    kind: ClassVar[str] = "item.put"
    summary: ClassVar[tuple[str, ...]] = ("id", "text")

    sequence: int
    item: NewItem
    vectors: Halves

    def body(self) -> Mapping[str, Any]:
        """What the label log stores beside the vectors."""
        return asdict(self.item)

    @classmethod
    def from_event(cls, event: Event, vectors_of: VectorsOf) -> Self:
        """Read the change back; raises KeyError, TypeError or ValueError for a wrong body."""
        item = NewItem(id=event.body["id"], text=event.body["text"])
        return cls(sequence=event.sequence, item=item, vectors=vectors_of(item))


@dataclass(frozen=True, kw_only=True, slots=True)
class DeleteItem(Deletion):
    """Delete an item of the item memory."""

    kind: ClassVar[str] = "item.delete"


@dataclass(frozen=True, kw_only=True, slots=True)
class UseBundle:
    """Serve the bundle named `bundle` from now on; changes nothing of the memory but the version.

    `configured` is the fingerprint of the bundle that the service was started with: after a restart
    with another one the request is void.
    """

    kind: ClassVar[str] = "bundle.use"
    summary: ClassVar[tuple[str, ...]] = ("bundle",)

    sequence: int
    bundle: str
    configured: str

    @property
    def vectors(self) -> Halves:
        """None, [0, 0]."""
        return _no_vectors()

    def body(self) -> Mapping[str, Any]:
        """What the label log stores."""
        return {"bundle": self.bundle, "configured": self.configured}

    @classmethod
    def from_event(cls, event: Event, vectors_of: VectorsOf | None = None) -> Self:
        """Read the change back; raises KeyError for a wrong body."""
        return cls(
            sequence=event.sequence,
            bundle=event.body["bundle"],
            configured=event.body["configured"],
        )


Change = PutLabel | DeleteLabel | PutInstance | PutItem | DeleteItem | UseBundle

CHANGES: Mapping[str, type[Change]] = {
    PutLabel.kind: PutLabel,
    DeleteLabel.kind: DeleteLabel,
    PutInstance.kind: PutInstance,
    PutItem.kind: PutItem,
    DeleteItem.kind: DeleteItem,
    UseBundle.kind: UseBundle,
}


def rows_of(item: Item) -> int:
    """How many vectors an item has, and rows of the memory it takes at most."""
    return 1 + len(item.queries) if isinstance(item, NewLabel) else 1


def _no_vectors() -> Halves:
    return np.zeros((0, 0), np.float16)

"""The kinds of write, one class each: what a client's write becomes, and what the label log stores.

A change is built from a client's request or read back from an event of the label log. The memory
applies both alike. To add a kind of write, add a class here, list it in `Change`, and define in
`Draft` what it does to the rows.

| class            | kind              | body (JSON)                         | vectors, fp16     |
|------------------|-------------------|-------------------------------------|-------------------|
| `PutLabel`       | `label.put`       | `id`, `text`, `aliases`, `queries`, | [1 + aliases +    |
|                  |                   | `metadata`, `starts_at`,            | queries, d], in   |
|                  |                   | `expires_at`, `boost`               | this order        |
| `ChangeLabel`    | `label.change`    | `id`, `metadata`, `starts_at`,      | none              |
|                  |                   | `expires_at`, `boost`               |                   |
| `DeleteLabel`    | `label.delete`    | `id`                                | none              |
| `PutInstance`    | `instance.put`    | `query`, `labels` (ids), `weight`,  | [1, d]            |
|                  |                   | `at`, `clicks`                      |                   |
| `DeleteInstance` | `instance.delete` | `query`, `labels` (ids), `trained` | none              |
| `PutItem`        | `item.put`        | `id`, `text`                        | [1, d]            |
| `DeleteItem`     | `item.delete`     | `id`                                | none              |
| `PutRule`        | `rule.put`        | what `Rule.document` returns        | none              |
| `DeleteRule`     | `rule.delete`     | `id`, `tenant`                      | none              |
| `UseBundle`      | `bundle.use`      | `bundle`, `configured`              | none              |

An instance's `weight` and a label's `boost` are left out if they are 1, times, `clicks` and
`aliases` if there are none, and `trained` if it is false. Times are integers of microseconds. A
weight is less than 0 for negative pairs. All vectors are the encoder's. The memory fuses a query
with the items that it holds at this point of the log, so a replay finds the same items.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, Self, get_args

import numpy as np

from service.core import times
from service.core.label import LABEL_FIELDS, facts_of, from_store, to_store
from service.core.rules import Rule, from_document, tenant_of
from service.core.tenant import Tenant
from service.core.types import Event, Halves, NewInstance, NewItem, NewLabel

Posted = NewLabel | NewInstance | NewItem  # what can be posted
VectorsOf = Callable[[Posted], Halves]  # returns an item's vectors [n, d], stored or encoded again


@dataclass(frozen=True, kw_only=True, slots=True)
class PutLabel:
    """Create or replace a label.

    Its vectors [1 + aliases + queries, d] are those of its text, its aliases and its queries.
    """

    kind: ClassVar[str] = "label.put"
    summary: ClassVar[tuple[str, ...]] = ("id", "text", "aliases", "queries")

    sequence: int
    label: NewLabel
    vectors: Halves

    def body(self) -> Mapping[str, Any]:
        """Return what the label log stores alongside the vectors, without what a label lacks."""
        return {"id": self.label.id, "text": self.label.text, **to_store(facts_of(self.label))}

    @classmethod
    def from_event(cls, event: Event, vectors_of: VectorsOf) -> Self:
        """Read the change back; raises KeyError, TypeError or ValueError for a wrong body."""
        label = NewLabel(**from_store(event.body))
        return cls(sequence=event.sequence, label=label, vectors=vectors_of(label))


@dataclass(frozen=True, kw_only=True, slots=True)
class PutInstance:
    """Add a query with the labels that it was clicked for, or rejected. Its vectors are [1, d].

    A label that is unknown gets no vote, as the bundle may have changed since the write was logged.
    If a label was clicked for the same query before, the weight of this click replaces the old one,
    unless that click has a later time. With `clicks`, they are added instead.
    With a weight below 0 (a negative pair), the query votes against its labels.
    """

    kind: ClassVar[str] = "instance.put"
    summary: ClassVar[tuple[str, ...]] = ("query", "labels", "weight", "at", "clicks")

    sequence: int
    instance: NewInstance
    vectors: Halves

    def body(self) -> Mapping[str, Any]:
        """Return what the label log stores alongside the vectors."""
        body = asdict(self.instance)
        if self.instance.weight == 1.0:
            del body["weight"]  # most clicks weigh 1, so it is not stored
        return {name: value for name, value in body.items() if value is not None}

    @classmethod
    def from_event(cls, event: Event, vectors_of: VectorsOf) -> Self:
        """Read the change back; raises KeyError, TypeError or ValueError for a wrong body."""
        weight = float(event.body.get("weight", 1.0))
        if not 0 < abs(weight) < math.inf:
            raise ValueError(f"a click weighs {weight}, which is 0 or no finite number")
        at, clicks = times.stored(event.body.get("at")), event.body.get("clicks")
        if clicks is not None and not 0 < clicks < math.inf:
            raise ValueError(f"the event counts {clicks} clicks")
        query, labels = event.body["query"], tuple(event.body["labels"])
        instance = NewInstance(query=query, labels=labels, weight=weight, at=at, clicks=clicks)
        return cls(sequence=event.sequence, instance=instance, vectors=vectors_of(instance))


@dataclass(frozen=True, kw_only=True, slots=True)
class PutItem:
    """Create or replace an item, if there is an item memory; the vector [1, d] is its text's."""

    kind: ClassVar[str] = "item.put"
    summary: ClassVar[tuple[str, ...]] = ("id", "text")

    sequence: int
    item: NewItem
    vectors: Halves

    def body(self) -> Mapping[str, Any]:
        """Return what the label log stores alongside the vectors."""
        return asdict(self.item)

    @classmethod
    def from_event(cls, event: Event, vectors_of: VectorsOf) -> Self:
        """Read the change back; raises KeyError, TypeError or ValueError for a wrong body."""
        item = NewItem(id=event.body["id"], text=event.body["text"])
        return cls(sequence=event.sequence, item=item, vectors=vectors_of(item))


@dataclass(frozen=True, kw_only=True, slots=True)
class ChangeWithoutTexts:
    """A change without vectors. The label log stores all fields except the sequence number."""

    kind: ClassVar[str]
    summary: ClassVar[tuple[str, ...]]

    sequence: int

    @property
    def vectors(self) -> Halves:
        """No vectors, [0, 0]."""
        return np.zeros((0, 0), np.float16)

    def body(self) -> Mapping[str, Any]:
        """Return what the label log stores."""
        return {field.name: getattr(self, field.name) for field in fields(self)[1:]}

    @classmethod
    def from_event(cls, event: Event, vectors_of: VectorsOf | None = None) -> Self:
        """Read the change back; raises KeyError for a wrong body."""
        stored = {field.name: event.body[field.name] for field in fields(cls)[1:]}
        return cls(sequence=event.sequence, **stored)


@dataclass(frozen=True, kw_only=True, slots=True)
class ChangeLabel(ChangeWithoutTexts):
    """Replace a label's metadata, dates and boost. Its texts stay, so nothing is encoded.

    If there is no such label, only the version changes: the bundle may have changed since the write
    was logged.
    """

    kind: ClassVar[str] = "label.change"
    summary: ClassVar[tuple[str, ...]] = ("id", "metadata")

    id: str
    facts: Mapping[str, Any]  # the label's fields that hold no texts

    @classmethod
    def of(cls, label: NewLabel, *, sequence: int, id: str) -> Self:
        """Return the change of the label `id` that leaves it as `label`, which has its texts."""
        return cls(sequence=sequence, id=id, facts=_without_texts(facts_of(label)))

    def body(self) -> Mapping[str, Any]:
        """Return what the label log stores, without what a label lacks."""
        return {"id": self.id, **to_store(self.facts)}

    @classmethod
    def from_event(cls, event: Event, vectors_of: VectorsOf | None = None) -> Self:
        """Read the change back; raises KeyError, TypeError or ValueError for a wrong body."""
        known = NewLabel(**from_store({"text": "", "queries": (), **event.body}))
        return cls.of(known, sequence=event.sequence, id=known.id)


@dataclass(frozen=True, kw_only=True, slots=True)
class DeleteLabel(ChangeWithoutTexts):
    """Delete the label with this id; if there is none, only the version changes."""

    kind: ClassVar[str] = "label.delete"
    summary: ClassVar[tuple[str, ...]] = ("id",)

    id: str


@dataclass(frozen=True, kw_only=True, slots=True)
class DeleteInstance(ChangeWithoutTexts):
    """Take back the clicks and negative pairs of exactly this query and these labels.

    With `trained`, the pairs are also removed from the training data's rows, and the query from the
    `queries` of the labels. A pair that the memory does not hold changes nothing.
    """

    kind: ClassVar[str] = "instance.delete"
    summary: ClassVar[tuple[str, ...]] = ("query", "labels")

    query: str
    labels: tuple[str, ...]
    trained: bool = False

    def body(self) -> Mapping[str, Any]:
        """Return what the label log stores."""
        pairs = {"query": self.query, "labels": self.labels}
        return {**pairs, "trained": True} if self.trained else pairs

    @classmethod
    def from_event(cls, event: Event, vectors_of: VectorsOf | None = None) -> Self:
        """Read the change back; raises KeyError or TypeError for a wrong body."""
        query, labels = event.body["query"], tuple(event.body["labels"])
        trained = event.body.get("trained", False) is True
        return cls(sequence=event.sequence, query=query, labels=labels, trained=trained)


@dataclass(frozen=True, kw_only=True, slots=True)
class DeleteItem(ChangeWithoutTexts):
    """Delete the item with this id; if there is none, only the version changes."""

    kind: ClassVar[str] = "item.delete"
    summary: ClassVar[tuple[str, ...]] = ("id",)

    id: str


@dataclass(frozen=True, kw_only=True, slots=True)
class PutRule(ChangeWithoutTexts):
    """Create or replace a rule."""

    kind: ClassVar[str] = "rule.put"
    summary: ClassVar[tuple[str, ...]] = ("id", "when", "then")

    rule: Rule

    def body(self) -> Mapping[str, Any]:
        """Return what the label log stores."""
        return self.rule.document()

    @classmethod
    def from_event(cls, event: Event, vectors_of: VectorsOf | None = None) -> Self:
        """Read the change back; raises KeyError, TypeError or ValueError for a wrong body."""
        return cls(sequence=event.sequence, rule=from_document(event.body))


@dataclass(frozen=True, kw_only=True, slots=True)
class DeleteRule(ChangeWithoutTexts):
    """Delete a tenant's rule with this id; if there is none, only the version changes."""

    kind: ClassVar[str] = "rule.delete"
    summary: ClassVar[tuple[str, ...]] = ("id",)

    id: str
    tenant: Tenant | None = None

    def body(self) -> Mapping[str, Any]:
        """Return what the label log stores."""
        return (
            {"id": self.id} if self.tenant is None else {"id": self.id, "tenant": str(self.tenant)}
        )

    @classmethod
    def from_event(cls, event: Event, vectors_of: VectorsOf | None = None) -> Self:
        """Read the change back; raises KeyError, TypeError or ValueError for a wrong body."""
        return cls(sequence=event.sequence, id=event.body["id"], tenant=tenant_of(event.body))


@dataclass(frozen=True, kw_only=True, slots=True)
class UseBundle(ChangeWithoutTexts):
    """Serve the bundle named `bundle` from now on. In the memory, only the version changes.

    `configured` is the fingerprint of the bundle that the service was started with. If a restart
    uses another bundle, this change has no effect.
    """

    kind: ClassVar[str] = "bundle.use"
    summary: ClassVar[tuple[str, ...]] = ("bundle",)

    bundle: str
    configured: str


Change = (
    PutLabel
    | ChangeLabel
    | DeleteLabel
    | PutInstance
    | DeleteInstance
    | PutItem
    | DeleteItem
    | PutRule
    | DeleteRule
    | UseBundle
)

CHANGES: Mapping[str, type[Change]] = {change.kind: change for change in get_args(Change)}


def _without_texts(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {one.name: facts[one.name] for one in LABEL_FIELDS if not one.has_texts}


def rows_of(item: Posted) -> int:
    """Return how many vectors an item has: the most rows of the memory that it can take."""
    return 1 + len(item.aliases) + len(item.queries) if isinstance(item, NewLabel) else 1

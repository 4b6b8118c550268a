"""The labels, clicks and items of one client that the memory must hold: a simple model."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from service.core import changes
from service.core.changes import DeleteLabel, PutInstance, PutLabel
from service.core.types import Event

Form = Mapping[str, Any]  # a label as posted: id, text, queries, metadata


@dataclass(frozen=True, kw_only=True)
class Put:
    form: Form


@dataclass(frozen=True, kw_only=True)
class Delete:
    id: str


@dataclass(frozen=True, kw_only=True)
class Click:
    query: str
    labels: tuple[str, ...]
    weight: float = 1.0


@dataclass(frozen=True, kw_only=True)
class PutItem:
    id: str
    text: str


@dataclass(frozen=True, kw_only=True)
class RemoveItem:
    id: str


Change = Put | Delete | Click | PutItem | RemoveItem


@dataclass(frozen=True, kw_only=True)
class Fact:
    """An event that the log must hold: at `sequence`, or not after `until`, where known."""

    kind: str
    body: Mapping[str, Any]
    sequence: int | None = None
    until: int | None = None

    def matches(self, event: Event) -> bool:
        return (
            (self.kind, self.body) == (event.kind, event.body)
            and self.sequence in (None, event.sequence)
            and (self.until is None or event.sequence <= self.until)
        )


@dataclass(kw_only=True)
class ExpectedMemory:
    """Labels by id, their versions (None where only the log knows it yet), clicks by query, items.

    A click is the weights of its labels, by id; the last one counts. `base` are the bundle's
    labels that were never deleted. `items` are texts by id.
    """

    forms: dict[str, Form]
    versions: dict[str, int | None]
    base: set[str]
    clicks: dict[str, Mapping[str, float]] = field(default_factory=dict)
    items: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, base: Mapping[str, str], items: Mapping[str, str]) -> "ExpectedMemory":
        """Labels and items of a bundle, by id and text."""
        forms = {
            label_id: {"id": label_id, "text": text, "queries": [], "metadata": {}}
            for label_id, text in base.items()
        }
        versions = dict.fromkeys(base, 0)
        return cls(forms=forms, versions=versions, base=set(base), items=dict(items))

    def copy(self) -> "ExpectedMemory":
        return ExpectedMemory(
            forms=dict(self.forms),
            versions=dict(self.versions),
            base=set(self.base),
            clicks=dict(self.clicks),
            items=dict(self.items),
        )

    def label(self, label_id: str) -> dict[str, Any] | None:
        """The label as GET /labels must show it; None where there is none."""
        form = self.forms.get(label_id)
        if form is None:
            return None
        return {**form, "novel": label_id not in self.base, "version": self.versions[label_id]}

    def require_clicks(self, label_id: str, clicked: Mapping[str, Any]) -> None:
        """Fail unless GET /labels/{id} shows this client's clicks of the label with their weights.

        There may be others beside them.
        """
        own = {query: ids[label_id] for query, ids in self.clicks.items() if label_id in ids}
        assert clicked["total"] >= len(own)
        if clicked["total"] == len(clicked["newest"]):  # otherwise some are not shown
            shown = dict.fromkeys(clicked["newest"], 1.0) | clicked.get("weights", {})
            assert own.items() <= shown.items()

    def apply(self, change: Change) -> tuple[str, Fact | None]:
        """Apply a change; returns the status that the client must be answered, and the event."""
        if isinstance(change, Put):
            return self._put(change.form)
        if isinstance(change, Delete):
            return self._delete(change.id)
        if isinstance(change, PutItem):
            return self._put_item(change)
        if isinstance(change, RemoveItem):
            return self._remove_item(change.id)
        return self._click(change)

    def _put(self, form: Form) -> tuple[str, Fact | None]:
        known = self.forms.get(form["id"])
        if known == form:
            return "unchanged", None
        self.forms[form["id"]] = form
        self.versions[form["id"]] = None
        return "created" if known is None else "updated", Fact(kind=PutLabel.kind, body=form)

    def _delete(self, label_id: str) -> tuple[str, Fact | None]:
        del self.forms[label_id], self.versions[label_id]
        self.base.discard(label_id)
        remaining = {
            query: {voted: weight for voted, weight in weights.items() if voted != label_id}
            for query, weights in self.clicks.items()
        }
        self.clicks = {query: weights for query, weights in remaining.items() if weights}
        return "deleted", Fact(kind=DeleteLabel.kind, body={"id": label_id})

    def _put_item(self, item: PutItem) -> tuple[str, Fact | None]:
        known = self.items.get(item.id)
        if known == item.text:
            return "unchanged", None
        self.items[item.id] = item.text
        body = {"id": item.id, "text": item.text}
        return "created" if known is None else "updated", Fact(kind=changes.PutItem.kind, body=body)

    def _remove_item(self, item_id: str) -> tuple[str, Fact | None]:
        del self.items[item_id]
        return "deleted", Fact(kind=changes.DeleteItem.kind, body={"id": item_id})

    def _click(self, click: Click) -> tuple[str, Fact | None]:
        known = self.clicks.get(click.query, {})
        weights = {**known, **dict.fromkeys(click.labels, click.weight)}
        if weights == known:
            return "accepted", None
        self.clicks[click.query] = weights
        body: dict[str, Any] = {"query": click.query, "labels": list(click.labels)}
        if click.weight != 1.0:
            body["weight"] = click.weight
        return "accepted", Fact(kind=PutInstance.kind, body=body)

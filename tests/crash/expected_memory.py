"""The labels and clicks of one client that the memory must hold: a simple model to compare with."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

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


Change = Put | Delete | Click


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
    """Labels by id, their versions (None where only the log knows it yet), and labels by query.

    `base` are the bundle's labels that were never deleted.
    """

    forms: dict[str, Form]
    versions: dict[str, int | None]
    base: set[str]
    clicks: dict[str, frozenset[str]] = field(default_factory=dict)

    @classmethod
    def of(cls, base: Mapping[str, str]) -> "ExpectedMemory":
        """Labels of a bundle, by id and text."""
        forms = {
            label_id: {"id": label_id, "text": text, "queries": [], "metadata": {}}
            for label_id, text in base.items()
        }
        return cls(forms=forms, versions=dict.fromkeys(base, 0), base=set(base))

    def copy(self) -> "ExpectedMemory":
        return ExpectedMemory(
            forms=dict(self.forms),
            versions=dict(self.versions),
            base=set(self.base),
            clicks=dict(self.clicks),
        )

    def label(self, label_id: str) -> dict[str, Any] | None:
        """The label as GET /labels must show it; None where there is none."""
        form = self.forms.get(label_id)
        if form is None:
            return None
        return {**form, "novel": label_id not in self.base, "version": self.versions[label_id]}

    def queries_clicked_for(self, label_id: str) -> set[str]:
        """The queries of this client whose clicks name the label."""
        return {query for query, labels in self.clicks.items() if label_id in labels}

    def apply(self, change: Change) -> tuple[str, Fact | None]:
        """Apply a change; returns the status that the client must be answered, and the event."""
        if isinstance(change, Put):
            return self._put(change.form)
        if isinstance(change, Delete):
            return self._delete(change.id)
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
        self.clicks = {
            query: voted - {label_id} for query, voted in self.clicks.items() if voted - {label_id}
        }
        return "deleted", Fact(kind=DeleteLabel.kind, body={"id": label_id})

    def _click(self, click: Click) -> tuple[str, Fact | None]:
        known = self.clicks.get(click.query, frozenset())
        self.clicks[click.query] = known | set(click.labels)
        if known.issuperset(click.labels):
            return "accepted", None
        body = {"query": click.query, "labels": list(click.labels)}
        return "accepted", Fact(kind=PutInstance.kind, body=body)

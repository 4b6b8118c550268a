"""One client's labels and clicks as the memory must hold them: a second, obvious model of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from service.core.changes import DeleteLabel, PutInstance, PutLabel
from service.core.types import Event

Form = Mapping[str, Any]  # a label as it is posted: id, text, queries, metadata


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
    """An event that must be in the log, at `sequence` where that is known, not behind `until`."""

    kind: str
    body: Mapping[str, Any]
    sequence: int | None = None
    until: int | None = None

    def is_of(self, event: Event) -> bool:
        return (
            (self.kind, self.body) == (event.kind, event.body)
            and self.sequence in (None, event.sequence)
            and (self.until is None or event.sequence <= self.until)
        )


@dataclass(kw_only=True)
class Holdings:
    """`versions` of live labels are None where only the log knows them yet."""

    forms: dict[str, Form]
    versions: dict[str, int | None]
    base: set[str]  # labels of the bundle that were never deleted
    clicks: dict[str, frozenset[str]] = field(default_factory=dict)

    @classmethod
    def of(cls, base: Mapping[str, str]) -> "Holdings":
        """Labels of a bundle, by id and text."""
        forms = {
            label_id: {"id": label_id, "text": text, "queries": [], "metadata": {}}
            for label_id, text in base.items()
        }
        return cls(forms=forms, versions=dict.fromkeys(base, 0), base=set(base))

    def copy(self) -> "Holdings":
        return Holdings(
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

    def apply(self, change: Change) -> tuple[str, Fact | None]:
        """Make a change; returns what the client must be told and what must be logged."""
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

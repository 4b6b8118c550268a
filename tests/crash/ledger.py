"""One client's requests and their answers: the memory and the log must hold exactly these.

Each client uses its own label ids and queries, and sends one request at a time. So the log holds
its events in the order of its requests. First come the acknowledged requests, at exactly the
versions in the answers. The last request may follow: all of it or nothing, but of a stream perhaps
only the first lines. Any other event was duplicated or invented, and a missing one was lost.
"""

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

from service.core.changes import DeleteItem, DeleteLabel, PutInstance, PutItem, PutLabel
from service.core.types import Event

NEW_IDS = 12  # of labels, and of items, that a client may add
Form = Mapping[str, Any]  # a label as posted: id, text, queries, metadata


@dataclass(frozen=True, kw_only=True)
class Fact:
    """A change and the place of its event in the log, if known: at `sequence`, or up to `until`."""

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


def put(form: Form) -> Fact:
    return Fact(kind=PutLabel.kind, body=form)


def click(query: str, labels: Sequence[str], weight: float) -> Fact:
    body = {"query": query, "labels": list(labels)}
    return Fact(kind=PutInstance.kind, body=body if weight == 1 else {**body, "weight": weight})


def put_item(item_id: str, text: str) -> Fact:
    return Fact(kind=PutItem.kind, body={"id": item_id, "text": text})


def delete(kind: type[DeleteLabel | DeleteItem], deleted: str) -> Fact:
    return Fact(kind=kind.kind, body={"id": deleted})


@dataclass(kw_only=True)
class ExpectedMemory:
    """The labels, clicks and items that the service must hold after a client's writes.

    `versions` has None while the client does not know a label's version. `clicks` maps a query to
    its labels' newest weights, `items` an id to its text. `base`: the bundle's undeleted labels.
    """

    forms: dict[str, Form]
    versions: dict[str, int | None]
    base: set[str]
    clicks: dict[str, Mapping[str, float]] = field(default_factory=dict)
    items: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, base: Mapping[str, str], items: Mapping[str, str]) -> "ExpectedMemory":
        """A bundle's labels and items; both arguments map ids to texts."""
        forms = {
            label_id: {"id": label_id, "text": text, "queries": [], "metadata": {}}
            for label_id, text in base.items()
        }
        versions = dict.fromkeys(base, 0)
        return cls(forms=forms, versions=versions, base=set(base), items=dict(items))

    def label(self, label_id: str) -> dict[str, Any] | None:
        """Return the label as GET /labels must show it, or None if it does not exist."""
        form = self.forms.get(label_id)
        if form is None:
            return None
        return {**form, "novel": label_id not in self.base, "version": self.versions[label_id]}

    def require_clicks(self, label_id: str, clicked: Mapping[str, Any]) -> None:
        """Fail unless `clicked` in GET /labels/{id} holds this client's clicks with their weights.

        It may hold other clients' clicks too.
        """
        own = {query: ids[label_id] for query, ids in self.clicks.items() if label_id in ids}
        assert clicked["total"] >= len(own)
        if clicked["total"] == len(clicked["newest"]):  # otherwise it omits older ones
            shown = dict.fromkeys(clicked["newest"], 1.0) | clicked.get("weights", {})
            assert own.items() <= shown.items()

    def apply(self, change: Fact) -> str:
        """Apply a change, and return the status that the service must answer.

        If the status is "unchanged", the log gets no event.
        """
        body = change.body
        if change.kind == PutInstance.kind:
            known = self.clicks.get(body["query"], {})
            weights = {**known, **dict.fromkeys(body["labels"], body.get("weight", 1.0))}
            self.clicks[body["query"]] = weights
            return "unchanged" if weights == known else "accepted"
        if change.kind == DeleteItem.kind:
            del self.items[body["id"]]
            return "deleted"
        if change.kind == DeleteLabel.kind:
            self._delete_label(body["id"])
            return "deleted"
        held, value = (
            (self.forms, body) if change.kind == PutLabel.kind else (self.items, body["text"])
        )
        known = held.get(body["id"])
        if known == value:
            return "unchanged"
        held[body["id"]] = value
        if change.kind == PutLabel.kind:
            self.versions[body["id"]] = None
        return "created" if known is None else "updated"

    def _delete_label(self, label_id: str) -> None:
        del self.forms[label_id], self.versions[label_id]
        self.base.discard(label_id)
        remaining = {
            query: {voted: weight for voted, weight in weights.items() if voted != label_id}
            for query, weights in self.clicks.items()
        }
        self.clicks = {query: weights for query, weights in remaining.items() if weights}


@dataclass(frozen=True, kw_only=True)
class Pending:
    """A request without an answer yet; if `whole`, the log must hold all of its changes or none."""

    changes: Sequence[Fact]
    whole: bool


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The outcome of the pending request; `version` is None if it has no event in the log."""

    pending: Pending
    version: int | None
    told: Sequence[str]  # the statuses of the changes that took effect


class Ledger:
    """The writes of one client that the memory and the log must hold."""

    def __init__(
        self,
        owner: str,
        *,
        base: Mapping[str, str],
        items: Mapping[str, str] | None = None,
    ) -> None:
        """`base`: the bundle's labels that this client writes to, texts by id.

        `items`: the bundle's items that it writes to, or None if there is no item memory.
        """
        self.owner = owner
        self.ids = [*base, *(f"{owner}-{number}" for number in range(NEW_IDS))]
        new_items = () if items is None else (f"{owner}-item-{number}" for number in range(NEW_IDS))
        self.item_ids = [*(items or {}), *new_items]
        self.expected = ExpectedMemory.of(base, items or {})
        self.history: list[Fact] = []
        self.pending: Pending | None = None

    def owns(self, event: Event) -> bool:
        """Whether the event is about this client's labels, queries or items."""
        if event.kind == PutInstance.kind:
            return str(event.body["query"]).startswith(f"{self.owner} ")
        if event.kind in (PutItem.kind, DeleteItem.kind):
            return event.body["id"] in self.item_ids
        return event.body.get("id") in self.ids

    def acknowledge(
        self, changes: Sequence[Fact], *, version: int, exact: bool = True
    ) -> list[str]:
        """Record acknowledged changes; return the statuses that the service must have answered.

        `version` is the last change's version; without `exact`, it may also be a later one.
        """
        told = [self.expected.apply(change) for change in changes]
        facts = [fact for fact, status in zip(changes, told, strict=True) if status != "unchanged"]
        first = version - len(facts) + 1
        self._note(
            replace(fact, sequence=first + place) if exact else replace(fact, until=version)
            for place, fact in enumerate(facts)
        )
        return told

    def settle(self, events: Sequence[Event]) -> Outcome | None:
        """Compare with this client's events in the log; return what became of the pending request.

        Raises AssertionError if an event was lost, duplicated or invented.
        """
        assert len(events) >= len(self.history), f"lost: {self.history[len(events) :]}"
        for fact, event in zip(self.history, events, strict=False):
            assert fact.matches(event), f"{fact} was acknowledged, but the log holds {event}"
        rest, outcome = events[len(self.history) :], None
        if self.pending is not None:
            happened = self._happened(self.pending, rest)
            told = [self.expected.apply(change) for change in happened]
            version = rest[-1].sequence if rest else None
            outcome = Outcome(pending=self.pending, version=version, told=told)
            self.pending = None
        else:
            assert not rest, f"duplicated or invented: {rest}"
        self.history = []
        self._note(Fact(kind=e.kind, body=e.body, sequence=e.sequence) for e in events)
        return outcome

    def _happened(self, pending: Pending, rest: Sequence[Event]) -> Sequence[Fact]:
        """Return the changes of `pending` that the log holds. Fails if `rest` has other events."""
        count, found, trial = 0, list(rest), deepcopy(self.expected)
        for change in pending.changes if rest else ():
            if trial.apply(change) != "unchanged":
                if not found:
                    break
                assert change.matches(found[0]), f"{found[0]} was not sent after the others"
                del found[0]
            count += 1
        assert not found, f"duplicated or invented: {found}"
        if pending.whole and rest:
            assert count == len(pending.changes), f"half of {pending}: {rest}"
            assert rest[-1].sequence - rest[0].sequence == len(rest) - 1
        # A change without an event leaves no trace, so it may be counted as applied.
        return pending.changes[:count]

    def _note(self, facts: Iterable[Fact]) -> None:
        for fact in facts:
            self.history.append(fact)
            if fact.kind == PutLabel.kind and fact.body["id"] in self.expected.forms:
                self.expected.versions[fact.body["id"]] = fact.sequence

"""One client's requests and their answers: the memory and the log must hold exactly these.

Each client uses its own label ids and queries, and sends one request at a time. So the log holds
its events in the order of its requests. First come the acknowledged requests, at exactly the
versions in the answers. The last request may follow: all of it or nothing, but of a stream perhaps
only the first lines. Any other event was duplicated or invented, and a missing one was lost.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

from service.core import times
from service.core.changes import (
    ChangeLabel,
    DeleteInstance,
    DeleteItem,
    DeleteLabel,
    DeleteRule,
    PutInstance,
    PutItem,
    PutLabel,
    PutRule,
)
from service.core.memory.row_ownership import NEWEST_QUERIES
from service.core.types import Event

NEW_IDS = 12  # of labels, of items, and of rules, that a client may add
TEXTS = ("text", "aliases", "queries")
DATES = ("starts_at", "expires_at", "at")
# A label, a click or a rule as the log stores it: as posted, but with dates in microseconds.
Form = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Fact:
    """A change and the place of its event in the log, if known: at `sequence`, or up to `until`.

    `renews` are the ids of the labels whose version becomes the event's number.
    """

    kind: str
    body: Mapping[str, Any]
    renews: Sequence[str] = ()
    sequence: int | None = None
    until: int | None = None

    @property
    def name(self) -> str:
        """The kind of write, for the report."""
        if self.body.get("weight", 1.0) < 0:
            return f"{self.kind} (negative)"
        dated = not self.body.keys().isdisjoint(DATES)
        marks = ["dated"] * dated + ["boosted"] * ("boost" in self.body)
        return f"{self.kind} ({', '.join(marks)})" if marks else self.kind

    def matches(self, event: Event) -> bool:
        return (
            (self.kind, self.body) == (event.kind, event.body)
            and self.sequence in (None, event.sequence)
            and (self.until is None or event.sequence <= self.until)
        )


def put(form: Form) -> Fact:
    return Fact(kind=PutLabel.kind, body=form, renews=(form["id"],))


def change(form: Form) -> Fact:
    """The change that gives a label the metadata, dates and boost of `form`."""
    body = {name: value for name, value in form.items() if name not in TEXTS}
    return Fact(kind=ChangeLabel.kind, body=body, renews=(form["id"],))


def put_rule(form: Form) -> Fact:
    return Fact(kind=PutRule.kind, body=form)


def shown(form: Form) -> dict[str, Any]:
    """Return a label, a click or a rule as it is posted and shown, with dates in RFC 3339."""
    dates = {name: times.shown(form[name]) for name in DATES if name in form}
    return {**form, **dates}


def has_started(form: Form, now: int) -> bool:
    return bool(form.get("starts_at", now) <= now)


def acts_on(rule: Form, query: str) -> bool:
    """Whether the condition of a rule holds for a query of plain words, as it was typed."""
    when, words = rule.get("when", {"query": "", "match": "contains"}), query.split()
    wanted = when["query"].split()
    if when["match"] == "exact":
        return bool(wanted == words)
    if when["match"] == "contains":
        return set(wanted) <= set(words)
    rest = iter(words)
    return all(word in rest for word in wanted)


def named_labels(rule: Form) -> set[str]:
    then = rule.get("then", {})
    pinned = {pin["id"] for pin in then.get("pin", ())}
    return {*then.get("hide", ()), *pinned, *then.get("boost", {}).get("labels", ())}


def click(query: str, labels: Sequence[str], weight: float, at: int | None) -> Fact:
    body: dict[str, Any] = {"query": query, "labels": list(labels)}
    if weight != 1:
        body["weight"] = weight
    if at is not None:
        body["at"] = at
    return Fact(kind=PutInstance.kind, body=body)


def is_late(at: int | None, newest: int | None) -> bool:
    """Whether a click of this time changes nothing after one of another hour."""
    return newest is not None and at is not None and at < newest


def put_item(item_id: str, text: str) -> Fact:
    return Fact(kind=PutItem.kind, body={"id": item_id, "text": text})


def delete(kind: type[DeleteLabel | DeleteItem | DeleteRule], deleted: str) -> Fact:
    return Fact(kind=kind.kind, body={"id": deleted})


@dataclass(kw_only=True)
class ExpectedMemory:
    """The labels, clicks, items and rules that the service must hold after a client's writes.

    `versions` has None while the client does not know a label's version. `clicks` maps a query to
    its labels' newest weights and times, `items` an id to its text. `base`: the bundle's undeleted
    labels. `trained` maps a query of the bundle to the labels that it still votes for.
    """

    forms: dict[str, Form]
    versions: dict[str, int | None]
    base: set[str]
    trained: dict[str, set[str]]
    clicks: dict[str, Mapping[str, float]] = field(default_factory=dict)
    items: dict[str, str] = field(default_factory=dict)
    rules: dict[str, Form] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        base: Mapping[str, str],
        trained: Mapping[str, Sequence[str]],
        items: Mapping[str, str],
    ) -> "ExpectedMemory":
        """A bundle's labels and items, texts by id, and its instances, label ids by query."""
        forms = {
            label_id: {"id": label_id, "text": text, "queries": [], "metadata": {}}
            for label_id, text in base.items()
        }
        return cls(
            forms=forms,
            versions=dict.fromkeys(base, 0),
            base=set(base),
            trained={query: set(voted) for query, voted in trained.items()},
            items=dict(items),
        )

    @property
    def rows(self) -> int:
        """The number of alive rows: of labels' texts and queries, clicks and training queries."""
        labels = sum(
            1 + len(form.get("aliases", ())) + len(form["queries"]) for form in self.forms.values()
        )
        return labels + len(self.clicks) + len(self.trained)

    def label(self, label_id: str) -> dict[str, Any] | None:
        """Return the label as GET /labels must show it, or None if it does not exist."""
        form = self.forms.get(label_id)
        if form is None:
            return None
        facts = {"novel": label_id not in self.base, "version": self.versions[label_id]}
        return {**shown(form), **facts}

    def learned(self, query: str, labels: Sequence[str]) -> list[str]:
        """Return those of the labels that exactly this query leads to."""
        voted = {*self.clicks.get(query, ()), *self.trained.get(query, ())}
        return [one for one in labels if one in voted or query in self.forms[one]["queries"]]

    def unlearn(self, query: str, labels: Sequence[str]) -> Fact:
        """Return the change that unlearns those of the labels that the query leads to."""
        learned = self.learned(query, labels)
        renews = [one for one in learned if query in self.forms[one]["queries"]]
        body = {"query": query, "labels": learned, "trained": True}
        return Fact(kind=DeleteInstance.kind, body=body, renews=renews)

    def require_clicks(self, label_id: str, clicked: Mapping[str, Any]) -> None:
        """Fail unless `clicked` in GET /labels/{id} holds exactly the clicks with their weights."""
        own = {query: ids[label_id][0] for query, ids in self.clicks.items() if label_id in ids}
        assert clicked["total"] == len(own)
        newest = dict.fromkeys(clicked["newest"], 1.0) | clicked.get("weights", {})
        assert newest.items() <= own.items()
        assert len(clicked["newest"]) == min(len(own), NEWEST_QUERIES)

    def apply(self, change: Fact) -> str:
        """Apply a change, and return the status that the service must answer.

        If the status is "unchanged", the log gets no event.
        """
        body = change.body
        if change.kind == PutInstance.kind:
            known = self.clicks.get(body["query"], {})
            vote = body.get("weight", 1.0), body.get("at")
            late = {label for label, (_, newest) in known.items() if is_late(vote[1], newest)}
            votes = {**known, **{label: vote for label in body["labels"] if label not in late}}
            self.clicks[body["query"]] = votes
            return "unchanged" if votes == known else "accepted"
        if change.kind == DeleteInstance.kind:
            return self._unlearn(body["query"], body["labels"])
        if change.kind in (DeleteItem.kind, DeleteRule.kind):
            del (self.items if change.kind == DeleteItem.kind else self.rules)[body["id"]]
            return "deleted"
        if change.kind == DeleteLabel.kind:
            self._delete_label(body["id"])
            return "deleted"
        if change.kind == ChangeLabel.kind:
            return self._change_label(body)
        held, value = {
            PutLabel.kind: (self.forms, body),
            PutRule.kind: (self.rules, body),
            PutItem.kind: (self.items, body.get("text")),
        }[change.kind]
        known = held.get(body["id"])
        if known == value:
            return "unchanged"
        held[body["id"]] = value
        if change.kind == PutLabel.kind:
            self.versions[body["id"]] = None
        return "created" if known is None else "updated"

    def _change_label(self, body: Form) -> str:
        known = self.forms[body["id"]]
        changed = {**{name: known[name] for name in TEXTS if name in known}, **body}
        if changed == known:
            return "unchanged"
        self.forms[body["id"]] = changed
        self.versions[body["id"]] = None
        return "updated"

    def _delete_label(self, label_id: str) -> None:
        del self.forms[label_id], self.versions[label_id]
        self.base.discard(label_id)
        for query in [*self.clicks, *self.trained]:
            self._without_votes(query, [label_id])

    def _unlearn(self, query: str, labels: Sequence[str]) -> str:
        self._without_votes(query, labels)
        for label_id in labels:
            form = self.forms[label_id]
            queries = [other for other in form["queries"] if other != query]
            if len(queries) < len(form["queries"]):
                self.forms[label_id] = {**form, "queries": queries}
                self.versions[label_id] = None
        return "unlearned" if labels else "unchanged"

    def _without_votes(self, query: str, labels: Sequence[str]) -> None:
        votes = self.clicks.pop(query, {})
        kept = {voted: vote for voted, vote in votes.items() if voted not in labels}
        if kept:
            self.clicks[query] = kept
        trained = self.trained.pop(query, set()).difference(labels)
        if trained:
            self.trained[query] = trained


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
        trained: Mapping[str, Sequence[str]],
        items: Mapping[str, str] | None = None,
    ) -> None:
        """`base`: the bundle's labels that this client writes to, texts by id.

        `trained`: the bundle's instances of these labels, label ids by query. `items`: the bundle's
        items that it writes to, or None if there is no item memory.
        """
        self.owner = owner
        self.ids = [*base, *(f"{owner}-{number}" for number in range(NEW_IDS))]
        new_items = () if items is None else (f"{owner}-item-{number}" for number in range(NEW_IDS))
        self.item_ids = [*(items or {}), *new_items]
        self.rule_ids = [f"{owner}-rule-{number}" for number in range(NEW_IDS)]
        self.trained = list(trained)
        self.expected = ExpectedMemory.of(base, trained, items or {})
        self.acknowledged: Counter[str] = Counter()  # by `Fact.name`
        self.history: list[Fact] = []
        self.pending: Pending | None = None

    def owns(self, event: Event) -> bool:
        """Whether the event is about this client's labels, items or rules."""
        if event.kind in (PutInstance.kind, DeleteInstance.kind):
            return event.body["labels"][0] in self.ids
        if event.kind in (PutItem.kind, DeleteItem.kind):
            return event.body["id"] in self.item_ids
        return event.body.get("id") in (*self.ids, *self.rule_ids)

    def acknowledge(
        self, changes: Sequence[Fact], *, version: int, exact: bool = True
    ) -> list[str]:
        """Record acknowledged changes; return the statuses that the service must have answered.

        `version` is the last change's version; without `exact`, it may also be a later one.
        """
        told = [self.expected.apply(change) for change in changes]
        facts = _changed(changes, told)
        self.acknowledged.update(fact.name for fact in facts)
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
        facts = self.history
        if self.pending is not None:
            happened = self._happened(self.pending, rest)
            told = [self.expected.apply(change) for change in happened]
            facts = [*facts, *_changed(happened, told)]
            version = rest[-1].sequence if rest else None
            outcome = Outcome(pending=self.pending, version=version, told=told)
            self.pending = None
        else:
            assert not rest, f"duplicated or invented: {rest}"
        self.history = []
        self._note(
            replace(fact, sequence=event.sequence, until=None)
            for fact, event in zip(facts, events, strict=True)
        )
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
            for label_id in fact.renews:
                if label_id in self.expected.forms:
                    self.expected.versions[label_id] = fact.sequence


def _changed(changes: Sequence[Fact], told: Sequence[str]) -> list[Fact]:
    """Return the changes that have an event, given their statuses."""
    return [fact for fact, status in zip(changes, told, strict=True) if status != "unchanged"]

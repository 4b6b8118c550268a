"""The writes of a soak, and the ledger that finds those that the service lost."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from threading import Lock
from urllib.parse import quote

from loadtests.connection import delete, post
from service.core.changes import (
    DeleteInstance,
    DeleteLabel,
    DeleteRule,
    PutInstance,
    PutLabel,
    PutRule,
)
from service.core.types import Event

LABELS = 400  # per writer of labels; each label is written repeatedly
CLICKED = 400  # queries per writer of clicks
LABELS_A_REQUEST = 4
RULES = 100  # per writer of rules; each rule is written repeatedly
DELETE_EVERY = 10  # every tenth request deletes a label or a rule, or unlearns its own click
BOOSTS = (1.0, 2.5, 1.0, 0.5)  # of the labels of one request
LONG_AGO = "2020-01-01T00:00:00Z"
FAR_FUTURE = "2099-12-31T00:00:00Z"
PATHS = {
    PutLabel.kind: "/labels",
    DeleteLabel.kind: "/labels",
    PutRule.kind: "/rules",
    DeleteRule.kind: "/rules",
}

Shown = tuple[str, float]  # a label's text and boost; the query of a rule's condition, and 1


@dataclass(frozen=True, kw_only=True)
class Write:
    """One change sent by a client: of a label or rule with the id `subject`, or of a query's pair.

    `text` is the label's new text or the query of the rule's condition; otherwise None. `weight` is
    that of a click, less than 0 for a negative pair, or the label's boost.
    """

    kind: str
    subject: str
    text: str | None = None
    weight: float = 1.0

    @property
    def path(self) -> str:
        """The path that shows the label or the rule; empty for a pair."""
        return f"{PATHS[self.kind]}/{quote(self.subject)}" if self.kind in PATHS else ""

    @property
    def shown(self) -> Shown | None:
        """The text and weight that a GET of the path shows after this write."""
        return None if self.text is None else (self.text, self.weight)

    @classmethod
    def of(cls, event: Event) -> Write:
        """Return the change that an event of the label log records."""
        body = event.body
        if event.kind in (PutInstance.kind, DeleteInstance.kind):
            weight = body.get("weight", 1.0)
            return cls(kind=event.kind, subject=body["query"], weight=weight)
        return cls(
            kind=event.kind,
            subject=body.get("id", ""),
            text=body["when"]["query"] if "when" in body else body.get("text"),
            weight=body.get("boost", 1.0),
        )


Turns = Iterator[tuple[bytes, Sequence[Write]]]  # requests without end, and what each writes


@dataclass(eq=False)
class Ledger:
    """All acknowledged writes by the version in their answer; usable by several threads.

    `unanswered` holds the writes whose connection broke: each may or may not have been written.
    """

    acknowledged: dict[int, Write] = field(default_factory=dict)
    unanswered: set[Write] = field(default_factory=set)
    _lock: Lock = field(default_factory=Lock)

    def acknowledge(self, version: int, writes: Sequence[Write]) -> None:
        """Record the writes of a request; the last one gets the version in the answer."""
        with self._lock:
            self.acknowledged.update(enumerate(writes, version - len(writes) + 1))

    def sent_without_answer(self, writes: Sequence[Write]) -> None:
        """Record writes whose connection broke."""
        with self._lock:
            self.unanswered.update(writes)

    def lost(self, events: Iterable[Event]) -> list[int]:
        """Return the acknowledged versions whose event is missing in the log, or differs."""
        stored = {event.sequence: Write.of(event) for event in events}
        return [
            version for version, write in self.acknowledged.items() if stored.get(version) != write
        ]

    def possible(self) -> Mapping[str, set[Shown | None]]:
        """Return what each path of a label or a rule may show now; None stands for a deleted one.

        It is the newest acknowledged write, or one that was sent and not answered.
        """
        with self._lock:
            acknowledged = sorted(self.acknowledged.items())
            unanswered = list(self.unanswered)
        possible: dict[str, set[Shown | None]] = {}
        for _, write in acknowledged:
            if write.path:
                possible[write.path] = {write.shown}
        for write in unanswered:
            if write.path:
                possible.setdefault(write.path, {None}).add(write.shown)
        return possible


def write_labels(queries: Iterator[str], *, owner: str) -> Turns:
    """Create and replace labels with aliases and queries, some with dates; delete some."""
    for number in count():
        ids = [
            f"{owner}-{(number * LABELS_A_REQUEST + place) % LABELS}"
            for place in range(LABELS_A_REQUEST)
        ]
        labels = [
            {
                "id": label_id,
                "text": f"{next(queries)} {owner} {number}",
                "aliases": [f"{owner}-{number}-{place}"],
                "queries": [f"{next(queries)} {number}"],
                "boost": BOOSTS[place],
                **({"expires_at": FAR_FUTURE} if place == 0 else {}),
            }
            for place, label_id in enumerate(ids)
        ]
        writes = [
            Write(kind=PutLabel.kind, subject=label_id, text=str(label["text"]), weight=boost)
            for label_id, label, boost in zip(ids, labels, BOOSTS, strict=True)
        ]
        yield post("/labels", {"labels": labels}), writes
        if number % DELETE_EVERY == DELETE_EVERY - 1:
            write = Write(kind=DeleteLabel.kind, subject=ids[0])
            yield delete(f"/labels/{ids[0]}"), [write]


def write_clicks(*, owner: str) -> Turns:
    """Create a label, then click it for queries; a query repeats after `CLICKED` others.

    Every pass over the queries clicks another label, so each click adds information. Some of the
    clicks are negative pairs, some have a time, and some are unlearned at once.
    """
    for number in count():
        label_id = f"{owner}-clicked-{number}"
        write = Write(kind=PutLabel.kind, subject=label_id, text=label_id)
        yield post("/labels", {"labels": [{"id": label_id, "text": label_id}]}), [write]
        for place in range(1, CLICKED + 1):
            query, negative = f"{owner} query {place}", place % 4 == 0
            instance = {"query": query, "labels": [label_id]}
            more = {"negative": negative, **({"at": LONG_AGO} if place % 3 == 0 else {})}
            write = Write(kind=PutInstance.kind, subject=query, weight=-1.0 if negative else 1.0)
            yield post("/instances", {"instances": [{**instance, **more}]}), [write]
            if place % DELETE_EVERY == 0:
                write = Write(kind=DeleteInstance.kind, subject=query)
                yield delete("/instances", {"instances": [instance]}), [write]


def write_rules(queries: Iterator[str], *, owner: str) -> Turns:
    """Create and replace rules that boost labels for one query each; delete some."""
    boost = {"factor": 2.0, "filter": {"all": [{"field": "x", "exists": True}]}}
    for number in count():
        rule_id, query = f"{owner}-rule-{number % RULES}", f"{next(queries)} {number}"
        when = {"query": query, "match": "exact"}
        rule = {"id": rule_id, "when": when, "then": {"boost": boost}}
        yield (
            post("/rules", {"rules": [rule]}),
            [Write(kind=PutRule.kind, subject=rule_id, text=query)],
        )
        if number % DELETE_EVERY == DELETE_EVERY - 1:
            yield delete(f"/rules/{rule_id}"), [Write(kind=DeleteRule.kind, subject=rule_id)]

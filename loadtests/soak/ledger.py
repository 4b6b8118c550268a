"""The ledger of acknowledged writes, and the search for writes that the service lost."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock
from urllib.parse import quote

from loadtests.clients.connection import RequestFailed, require
from service.core.changes import (
    DeleteInstance,
    DeleteLabel,
    DeleteRule,
    PutInstance,
    PutLabel,
    PutRule,
)
from service.core.types import Event

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


Ask = Callable[[bytes], tuple[int, bytes]]  # sends a request and returns status and body


class Refused(RequestFailed):
    """An answer with another status than 200, so nothing was written."""


@dataclass(eq=False)
class Ledger:
    """All acknowledged writes by the version in their answer; usable by several threads.

    `unanswered` holds the writes whose connection broke: each may or may not have been written.
    """

    acknowledged: dict[int, Write] = field(default_factory=dict)
    unanswered: set[Write] = field(default_factory=set)
    _lock: Lock = field(default_factory=Lock)

    def write(self, ask: Ask, request: bytes, writes: Sequence[Write]) -> None:
        """Send a request and record its writes; the last one gets the version in the answer."""
        try:
            version = require(ask(request))["version"]
        except Refused:
            raise
        except (OSError, RequestFailed):
            with self._lock:
                self.unanswered.update(writes)
            raise
        with self._lock:
            self.acknowledged.update(enumerate(writes, version - len(writes) + 1))

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

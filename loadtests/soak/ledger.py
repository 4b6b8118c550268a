"""The ledger of acknowledged writes, and the search for writes that the service lost."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock

from loadtests.clients.connection import RequestFailed, require
from service.core.changes import DeleteLabel, PutInstance, PutLabel
from service.core.types import Event


@dataclass(frozen=True, kw_only=True)
class Write:
    """One change sent by a client: of the label `subject`, or a click of the query `subject`.

    `text` is the label's new text; None for a deleted label and for a click.
    """

    kind: str
    subject: str
    text: str | None = None

    @classmethod
    def of(cls, event: Event) -> Write:
        """Return the change that an event of the label log records."""
        body = event.body
        if event.kind == PutInstance.kind:
            return cls(kind=event.kind, subject=body["query"])
        return cls(kind=event.kind, subject=body.get("id", ""), text=body.get("text"))


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

    def labels(self) -> Mapping[str, set[str | None]]:
        """Return the texts that each label may have now; None stands for a deleted label.

        They are the newest acknowledged text, and those that were sent and not answered.
        """
        with self._lock:
            acknowledged = sorted(self.acknowledged.items())
            unanswered = list(self.unanswered)
        possible: dict[str, set[str | None]] = {}
        for _, write in acknowledged:
            if write.kind in (PutLabel.kind, DeleteLabel.kind):
                possible[write.subject] = {write.text}
        for write in unanswered:
            if write.kind != PutInstance.kind:
                possible.setdefault(write.subject, {None}).add(write.text)
        return possible

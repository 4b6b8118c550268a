"""What one client sent and was answered, and the events that the log must hold therefore.

Each client uses its own label ids and queries, and sends one request at a time. So its events are
in the log in the order of its requests: first those of all acknowledged requests, at exactly the
versions that were answered; then perhaps those of the last request, all or none, or of a stream
those of its first lines. Any other event was duplicated or invented, and any missing one was lost.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from service.core.changes import DeleteItem, PutInstance, PutItem, PutLabel
from service.core.types import Event
from tests.crash.expected_memory import Change, ExpectedMemory, Fact


@dataclass(frozen=True, kw_only=True)
class Pending:
    """A request that was not acknowledged; `whole` where all of it must happen or nothing."""

    changes: Sequence[Change]
    whole: bool


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What happened to the pending request; `version` is that of its last event, if it has any."""

    pending: Pending
    version: int | None
    told: Sequence[str]  # the status of each change that happened


class Ledger:
    """What one client expects of the memory and of the log."""

    def __init__(
        self,
        owner: str,
        *,
        base: Mapping[str, str],
        items: Mapping[str, str] | None = None,
        ids: int = 12,
    ) -> None:
        """`base` are the bundle's labels that this client writes to: ids and texts.

        `items` are such items; None for a bundle without an item memory.
        """
        self.owner = owner
        self.ids = [*base, *(f"{owner}-{number}" for number in range(ids))]
        new_items = () if items is None else (f"{owner}-item-{number}" for number in range(ids))
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
        self, changes: Sequence[Change], *, version: int, exact: bool = True
    ) -> list[str]:
        """Record acknowledged changes; returns the statuses that the service must have answered.

        With `exact`, `version` is that of the last change; without, that of the last or a later
        one.
        """
        told, facts = _applied(self.expected, changes)
        first = version - len(facts) + 1
        self._note(
            replace(fact, sequence=first + place) if exact else replace(fact, until=version)
            for place, fact in enumerate(facts)
        )
        return told

    def settle(self, events: Sequence[Event]) -> Outcome | None:
        """Compare with this client's events in the log; returns what became of the pending request.

        Raises AssertionError for anything lost, duplicated or invented.
        """
        assert len(events) >= len(self.history), f"lost: {self.history[len(events) :]}"
        for fact, event in zip(self.history, events, strict=False):
            assert fact.matches(event), f"{fact} was acknowledged, but the log holds {event}"
        rest, outcome = events[len(self.history) :], None
        if self.pending is not None:
            happened = self._happened(self.pending, rest)
            told, _ = _applied(self.expected, happened)
            version = rest[-1].sequence if rest else None
            outcome = Outcome(pending=self.pending, version=version, told=told)
            self.pending = None
        else:
            assert not rest, f"duplicated or invented: {rest}"
        self.history = []
        self._note(Fact(kind=e.kind, body=e.body, sequence=e.sequence) for e in events)
        return outcome

    def _happened(self, pending: Pending, rest: Sequence[Event]) -> Sequence[Change]:
        """The changes of a request that the log holds; all events of `rest` must be its own."""
        count, found, trial = 0, list(rest), self.expected.copy()
        for change in pending.changes if rest else ():
            _, fact = trial.apply(change)
            if fact is not None:
                if not found:
                    break
                assert fact.matches(found[0]), f"{found[0]} was not sent after the others"
                del found[0]
            count += 1
        assert not found, f"duplicated or invented: {found}"
        if pending.whole and rest:
            assert count == len(pending.changes), f"half of {pending}: {rest}"
            assert rest[-1].sequence - rest[0].sequence == len(rest) - 1
        # Whether a change without an event happened cannot be known and makes no difference.
        return pending.changes[:count]

    def _note(self, facts: Iterable[Fact]) -> None:
        for fact in facts:
            self.history.append(fact)
            if fact.kind == PutLabel.kind and fact.body["id"] in self.expected.forms:
                self.expected.versions[fact.body["id"]] = fact.sequence


def _applied(expected: ExpectedMemory, changes: Sequence[Change]) -> tuple[list[str], list[Fact]]:
    applied = [expected.apply(change) for change in changes]
    return [told for told, _ in applied], [fact for _, fact in applied if fact is not None]

"""What one client sent and was told, and the log that must follow from it.

A client owns its label ids and its queries, and has one request on its way at a time. So its events
stand in the log in the order of its requests: those of every acknowledged request, at exactly the
numbers that the acknowledgement gave; behind them perhaps those of the last request, wholly or not
at all, or of a stream those of its first lines. Whatever else is there was doubled or invented, and
whatever is not there was lost.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from service.core.changes import PutInstance, PutLabel
from service.core.types import Event
from tests.crash.holdings import Change, Fact, Holdings


@dataclass(frozen=True, kw_only=True)
class Pending:
    """What was sent and not acknowledged; `whole` where it happened wholly or not at all."""

    changes: Sequence[Change]
    whole: bool


@dataclass(frozen=True, kw_only=True)
class Fate:
    """What became of the request that was pending: `version` is that of its last event, if any."""

    pending: Pending
    version: int | None
    told: Sequence[str]  # what the client would have been told of each change that happened


class Ledger:
    """One client's holdings, and its part of the log."""

    def __init__(self, owner: str, *, base: Mapping[str, str], ids: int = 12) -> None:
        """`base` are the labels of the bundle that are this client's, with their texts."""
        self.owner = owner
        self.ids = [*base, *(f"{owner}-{number}" for number in range(ids))]
        self.holdings = Holdings.of(base)
        self.history: list[Fact] = []
        self.pending: Pending | None = None

    def owns(self, event: Event) -> bool:
        """Whether the event speaks of this client's labels or queries."""
        if event.kind == PutInstance.kind:
            return str(event.body["query"]).startswith(f"{self.owner} ")
        return event.body.get("id") in self.ids

    def acknowledge(
        self, changes: Sequence[Change], *, version: int, exact: bool = True
    ) -> list[str]:
        """Note what the service says that it has done; returns what it must have told of it.

        With `exact` the events of `changes` end at `version`; else they are not behind it.
        """
        told, facts = _applied(self.holdings, changes)
        first = version - len(facts) + 1
        self._note(
            replace(fact, sequence=first + place) if exact else replace(fact, until=version)
            for place, fact in enumerate(facts)
        )
        return told

    def settle(self, events: Sequence[Event]) -> Fate | None:
        """Compare with this client's events in the log; learn what became of the last request.

        Raises AssertionError for anything lost, doubled or invented.
        """
        assert len(events) >= len(self.history), f"lost: {self.history[len(events) :]}"
        for fact, event in zip(self.history, events, strict=False):
            assert fact.is_of(event), f"{fact} was acknowledged, but the log holds {event}"
        rest, fate = events[len(self.history) :], None
        if self.pending is not None:
            happened = self._happened(self.pending, rest)
            told, _ = _applied(self.holdings, happened)
            version = rest[-1].sequence if rest else None
            fate = Fate(pending=self.pending, version=version, told=told)
            self.pending = None
        else:
            assert not rest, f"doubled or invented: {rest}"
        self.history = []
        self._note(Fact(kind=e.kind, body=e.body, sequence=e.sequence) for e in events)
        return fate

    def _happened(self, pending: Pending, rest: Sequence[Event]) -> Sequence[Change]:
        """The changes of a request that the log holds; all that is in `rest` must be of it."""
        count, found, trial = 0, list(rest), self.holdings.copy()
        for change in pending.changes if rest else ():
            _, fact = trial.apply(change)
            if fact is not None:
                if not found:
                    break
                assert fact.is_of(found[0]), f"{found[0]} was never sent behind the others"
                del found[0]
            count += 1
        assert not found, f"doubled or invented: {found}"
        if pending.whole and rest:
            assert count == len(pending.changes), f"half of {pending}: {rest}"
            assert rest[-1].sequence - rest[0].sequence == len(rest) - 1
        # Without an event nothing tells whether it happened, and nothing depends on it.
        return pending.changes[:count]

    def _note(self, facts: Iterable[Fact]) -> None:
        for fact in facts:
            self.history.append(fact)
            if fact.kind == PutLabel.kind and fact.body["id"] in self.holdings.forms:
                self.holdings.versions[fact.body["id"]] = fact.sequence


def _applied(holdings: Holdings, changes: Sequence[Change]) -> tuple[list[str], list[Fact]]:
    applied = [holdings.apply(change) for change in changes]
    return [told for told, _ in applied], [fact for _, fact in applied if fact is not None]

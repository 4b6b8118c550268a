"""Verifies a whole log event by event: nothing is missing, and nothing was altered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from service.core.errors import LogCorrupt
from service.core.label_log.log import LabelLog
from service.core.types import Event


@dataclass(frozen=True, kw_only=True)
class StoredEvent:
    """An event with the time when it was written; `size` is the bytes of body and vectors."""

    event: Event
    written: datetime
    size: int


@dataclass(frozen=True, kw_only=True)
class LogReport:
    """A summary of the events that were verified.

    `first` and `last` are sequence numbers, 0 if there is no event. `kinds` and `encoders` count
    events by kind and by encoder fingerprint. `size` is in bytes. `newest` is the time of the last
    event.
    """

    events: int
    first: int
    last: int
    kinds: Mapping[str, int]
    encoders: Mapping[str, int]
    size: int
    newest: datetime | None


def verify(log: LabelLog, *, after: int = 0) -> LogReport:
    """Read every event after number `after`; raises `LogCorrupt` at the first damaged one."""
    kinds: Counter[str] = Counter()
    encoders: Counter[str] = Counter()
    size, last, newest = 0, None, None
    for last in stored_events(log, after=after):
        kinds[last.event.kind] += 1
        encoders[last.event.encoder] += 1
        size += last.size
        newest = last.written
    return LogReport(
        events=kinds.total(),
        first=after + 1 if last else 0,
        last=last.event.sequence if last else 0,
        kinds=dict(kinds),
        encoders=dict(encoders),
        size=size,
        newest=newest,
    )


def stored_events(
    log: LabelLog, *, after: int = 0, until: int | None = None
) -> Iterator[StoredEvent]:
    """Yield the verified events after `after`, up to `until`; raises as `LabelLog.read`."""
    for row, event in log.verified(after=after, until=until):
        try:
            written = datetime.fromtimestamp(row.written, UTC)
        except (TypeError, ValueError, OverflowError, OSError) as error:
            raise LogCorrupt(
                f"{log.place}: event {row.sequence} has no valid time of writing"
            ) from error
        yield StoredEvent(event=event, written=written, size=len(row.body) + len(row.vectors))

"""Maintenance of a label log: verify it, cut its beginning, recover undamaged events.

`verify` reads a whole log event by event: nothing is missing, and nothing was altered.

`compact` cuts the events that a snapshot holds from a log's beginning, while services write to it.
A snapshot of a bundle without an item memory holds labels and clicks, but no items. If items were
put while another bundle was served, only the log has them. `lost_items` finds these.

`recover` writes the undamaged events of a damaged log to a new log. Each event has its own checksum
and is read alone, so a damaged, missing or unreadable event hides no other. The new log has its own
id and numbers the whole events again, without gaps, so versions of the damaged log mean nothing
there. All of its events are added to the bundle that it is served with. If the damaged log had been
cut, that bundle must be the snapshot that holds the cut events.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from service.core.changes import DeleteItem, PutItem, UseBundle
from service.core.errors import LogCorrupt, LogError, LogReplaced
from service.core.label_log.database import means_damage
from service.core.label_log.log import LabelLog
from service.core.label_log.rows import Link, Row, event_of
from service.core.types import Event

CUT_AT_ONCE = 1000  # events deleted per transaction; others write between two transactions
# If the newest event's number cannot be read, the log is assumed to end after this many numbers
# without a readable event.
UNREADABLE_AT_END = 10_000
_EVENTS_AT_ONCE = 1000  # written in one transaction

Runs = list[tuple[int, int]]  # the first and last number of each unbroken run of events


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


def compact(log: LabelLog, held: Link) -> int:
    """Cut the events up to `held`, the newest that a snapshot holds; return the last one cut.

    The newest change to another bundle and all events after it stay: a starting service reads there
    which bundle to serve. The newest event stays, too, so a slow reader can notice the cut. The log
    is whole after each step, even if the process is killed. Items that the snapshot does not hold
    are also cut: call `lost_items` first. Raises `LogReplaced` if the snapshot holds another event,
    and `LogError` if the log cannot be written.
    """
    log.require(held, knows="the snapshot holds")
    change = log.newest(UseBundle.kind)
    until = min(held.sequence, (change.sequence if change else log.last_sequence()) - 1)
    cut = log.cut()
    while cut < until:
        cut = min(cut + CUT_AT_ONCE, until)
        with log.exclusive() as appending:
            appending.cut(cut)
    log.shrink()
    return cut


@dataclass(frozen=True, kw_only=True)
class LostItems:
    """The ids of items whose newest write (a put or a deletion) would be cut."""

    put: frozenset[str]
    deleted: frozenset[str]

    def __bool__(self) -> bool:
        """Whether any item's newest write would be lost."""
        return bool(self.put or self.deleted)

    def __str__(self) -> str:
        """Return for example "2 items that were put and 1 deletion of an item"."""
        counts = [
            (len(self.put), "item that was put", "items that were put"),
            (len(self.deleted), "deletion of an item", "deletions of items"),
        ]
        return " and ".join(
            f"{count:,} {one if count == 1 else more}" for count, one, more in counts if count
        )


def lost_items(log: LabelLog, *, until: int) -> LostItems:
    """Find the items whose newest write is among the events up to `until`.

    Verifies only the events of items. Raises `LogCorrupt` for a damaged one, and at a gap.
    """
    put: set[str] = set()
    deleted: set[str] = set()
    for row in log.rows(after=log.cut()):
        if row.kind not in (PutItem.kind, DeleteItem.kind):
            continue
        item_id = event_of(row, place=log.place).body.get("id", "")
        put.discard(item_id)
        deleted.discard(item_id)
        if row.sequence <= until:
            (put if row.kind == PutItem.kind else deleted).add(item_id)
    return LostItems(put=frozenset(put), deleted=frozenset(deleted))


@dataclass(frozen=True, kw_only=True)
class Survey:
    """The whole events of a log, and the altered, lost or unreadable ones.

    `cut` is the newest event that was cut earlier, or 0. Only a snapshot holds the cut events.
    """

    whole: Runs
    lost: Runs
    cut: int = 0

    def __str__(self) -> str:
        """Return for example "whole are the events 1-17, 19-40; lost are 18"."""
        return f"whole are the events {_listed(self.whole)}; lost are {_listed(self.lost)}"


def survey(log: LabelLog, take: Callable[[Row], None] = lambda row: None) -> Survey:
    """Read every event alone, and call `take` with the row of each whole event."""
    whole: Runs = []
    lost: Runs = []
    for sequence, row in _rows(log):
        _extend(lost if row is None else whole, sequence)
        if row is not None:
            take(row)
    return Survey(whole=whole, lost=lost, cut=_cut(log))


def recover(log: LabelLog, target: LabelLog) -> Survey:
    """Write all whole events of a log into the new log `target`; raises `LogError`.

    Times of writing are kept; idempotency keys are not.
    """
    page: list[Row] = []

    def write() -> None:
        with target.exclusive() as appending:
            for row in page:
                appending.restore(event_of(row, place=log.place), written=row.written)
        page.clear()

    def take(row: Row) -> None:
        page.append(row)
        if len(page) == _EVENTS_AT_ONCE:
            write()

    found = survey(log, take)
    write()
    return found


def explained(log: LabelLog, error: LogError) -> LogError:
    """Return an error that lists the whole events if `error` means a damaged log; else `error`."""
    if not means_damage(error) or isinstance(error, LogReplaced):
        return error
    return LogCorrupt(
        f"{error}; {survey(log)}. `keymatch log --recover NEW` writes the whole ones into"
        " a new state folder"
    )


def _rows(log: LabelLog) -> Iterator[tuple[int, Row | None]]:
    """Yield each number with its row, or with None if the row is not whole."""
    try:
        last: int | None = log.last_sequence()
    except LogError:
        last = None
    unreadable: list[int] = []
    sequence = _cut(log)
    while sequence < last if last is not None else len(unreadable) < UNREADABLE_AT_END:
        sequence += 1
        row = _whole_row(log, sequence)
        if row is None and last is None:
            unreadable.append(sequence)
            continue
        yield from ((number, None) for number in unreadable)
        unreadable.clear()
        yield sequence, row


def _cut(log: LabelLog) -> int:
    """Return the newest event that was cut; 0 if this cannot be read."""
    try:
        return log.cut()
    except LogError:
        return 0


def _whole_row(log: LabelLog, sequence: int) -> Row | None:
    try:
        [row] = log.rows(after=sequence - 1, until=sequence)
        event_of(row, place=log.place)
    except (LogError, ValueError):  # a missing row is a ValueError
        return None
    return row


def _extend(runs: Runs, sequence: int) -> None:
    if runs and runs[-1][1] == sequence - 1:
        runs[-1] = (runs[-1][0], sequence)
    else:
        runs.append((sequence, sequence))


def _listed(runs: Runs) -> str:
    shown = [str(first) if first == last else f"{first}-{last}" for first, last in runs]
    return ", ".join(shown) or "none"

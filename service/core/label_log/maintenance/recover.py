"""Finds the undamaged events of a damaged log, and writes them to a new log.

Each event has its own checksum and is read alone, so a damaged, missing or unreadable event hides
no other. The new log has its own id and numbers the whole events again, without gaps, so versions
of the damaged log mean nothing there. All of its events are added to the bundle that it is served
with. If the damaged log had been cut, that bundle must be the snapshot that holds the cut events.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from service.core.errors import LogCorrupt, LogError, LogReplaced
from service.core.label_log.database import means_damage
from service.core.label_log.log import LabelLog
from service.core.label_log.rows import Row, event_of

# If the newest event's number cannot be read, the log is assumed to end after this many numbers
# without a readable event.
UNREADABLE_AT_END = 10_000
_EVENTS_AT_ONCE = 1000  # written in one transaction

Runs = list[tuple[int, int]]  # the first and last number of each unbroken run of events


@dataclass(frozen=True, kw_only=True)
class Survey:
    """Which events of a log are whole, and which are altered, lost or unreadable.

    `cut` is the newest event that was cut earlier, 0 if none was: only a snapshot holds those.
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

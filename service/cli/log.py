"""`python -m service log`: show, verify, save or cut the label log, for the person on call."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any

import orjson
from rich.table import Table
from rich.text import Text

from service.command_line import open_console
from service.core.bundle.bundle import open_bundle
from service.core.changes import CHANGES
from service.core.errors import InvalidConfig, LogCorrupt
from service.core.files.atomic import new_folder, refuse_existing, refuse_unwritable
from service.core.held_events import held_link
from service.core.label_log import LabelLog, open_log
from service.core.label_log.maintenance.check import LogReport, StoredEvent, stored_events, verify
from service.core.label_log.maintenance.compact import compact as cut_events
from service.core.label_log.maintenance.lost_items import LostItems, lost_items
from service.core.label_log.maintenance.recover import recover as save_whole_events
from service.core.types import Event

_FINGERPRINT_CHARACTERS = 12  # enough to tell encoders apart


def log(
    *,
    state: str,
    after: int = 0,
    check: bool = False,
    recover: Path | None = None,
    compact: Path | None = None,
    drop_items: bool = False,
    limit: int = 100,
    json: bool = False,
) -> int:
    """Show the label log, verify it, save what is whole of it, or cut what a snapshot holds.

    Only `--compact` changes the log. The service may run meanwhile. Exit status 1: `--check` found
    an event that is missing or altered, `--recover` could not save all, or `--compact` would lose
    items, so nothing was cut. 2: the log cannot be read, or not be cut.

    Parameters
    ----------
    state
        The state folder, or the URL postgresql://USER:PASSWORD@HOST:PORT/DATABASE.
    after
        Show or verify the events after this number; a negative number counts from the end.
    check
        Verify every event and print a verdict.
    recover
        Write every whole event into a new log in this new state folder, and say which were lost.
    compact
        Cut the events that the snapshot in this bundle's folder holds. From then on the log serves
        only with this snapshot or a later one, so reload it first, and keep a copy of it.
    limit
        Show at most this many events.
    json
        Print one JSON object per line.
    """
    if limit < 1:
        raise InvalidConfig("limit must be at least 1", field="limit")
    if compact is not None:
        return _compact(state, compact, drop_items=drop_items)
    if recover is not None:
        refuse_existing(recover)
        refuse_unwritable(recover)
    with closing(open_log(state, create=False)) as opened:
        if recover is not None:
            return _recover(opened, recover)
        last = opened.last_sequence()
        after = min(max(last + after if after < 0 else after, opened.cut()), last)
        if check:
            return _check(opened, after=after, json=json)
        return _show(opened, after=after, last=last, limit=limit, json=json)


def _show(opened: LabelLog, *, after: int, last: int, limit: int, json: bool) -> int:
    shown = stored_events(opened, after=after, until=after + limit)
    if json:
        _lines(_facts(stored) for stored in shown)
    else:
        _table(opened, shown, after=after, last=last, limit=limit)
    return 0


def _check(opened: LabelLog, *, after: int, json: bool) -> int:
    try:
        report = verify(opened, after=after)
    except LogCorrupt as error:
        _say(f"corrupt: {error}", stderr=True)
        return 1
    if json:
        _lines([{"place": opened.place, "id": opened.id, **_report_facts(report)}])
    else:
        _say(f"{opened.place}: {_verdict(report)}")
    return 0


def _recover(opened: LabelLog, folder: Path) -> int:
    with new_folder(folder) as partial, closing(open_log(partial)) as target:
        found = save_whole_events(opened, target)
    _say(f"{opened.place}: {found}")
    _say(f"{folder}: the whole events, numbered anew from 1; idempotency keys are not kept")
    if found.cut:
        _say(
            f"events 1 to {found.cut} had been cut before: serve {folder} only with the snapshot"
            " that holds them; with any other bundle their labels, clicks and items are missing"
        )
    return 1 if found.lost else 0


def _compact(state: str, bundle: Path, *, drop_items: bool) -> int:
    open_log(state, create=False).close()  # an empty log must not be created here
    with closing(open_log(state)) as opened:
        before = opened.cut()
        facts = open_bundle(bundle).manifest
        held = held_link(facts, opened)
        if facts.items is None and not drop_items:
            lost = lost_items(opened, until=held.sequence)
            if lost:
                return _refuse_to_lose(opened.place, bundle, lost)
        cut = cut_events(opened, held)
        kept = opened.last_sequence() - cut
    _say(f"{opened.place}: {cut - before:,} events were cut, {kept:,} are kept")
    if cut < held.sequence:
        _say(
            f"events {cut + 1} to {held.sequence} are in {bundle}, too, but a start reads there"
            " which bundle to serve: they can be cut once the snapshot has been reloaded"
        )
    return 0


def _refuse_to_lose(place: str, bundle: Path, lost: LostItems) -> int:
    _say(
        f"error: nothing was cut: {bundle} is a snapshot without an item memory, and {lost} are"
        f" only in {place}. Write a snapshot of a bundle with an item memory (`python -m service"
        " snapshot --bundle ... --state ... --out ...`), which holds labels, clicks and items;"
        " reload it and cut by that one. Or give --drop-items if the items may go",
        stderr=True,
    )
    return 1


def _table(
    opened: LabelLog, shown: Iterable[StoredEvent], *, after: int, last: int, limit: int
) -> None:
    table = Table("event", "time (UTC)", "kind", "content")
    for stored in shown:
        event = stored.event
        time = f"{stored.written:%Y-%m-%d %H:%M:%S}"
        table.add_row(str(event.sequence), time, event.kind, Text(_summary(event), overflow="fold"))
    open_console().print(table)
    more = f"; continue with --after {after + limit}" if after + limit < last else ""
    _say(f"{opened.place}: {last:,} events{more}")


def _summary(event: Event) -> str:
    """The event's main fields in one line, with control characters from clients replaced."""
    values = (event.body.get(name) for name in CHANGES[event.kind].summary)
    texts = (", ".join(map(str, value)) if isinstance(value, list) else value for value in values)
    line = " | ".join(str(text) for text in texts if text)
    return "".join(
        letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in line
    )


def _facts(stored: StoredEvent) -> dict[str, Any]:
    event = stored.event
    return {
        "sequence": event.sequence,
        "time": stored.written,
        "kind": event.kind,
        "body": event.body,
        "encoder": event.encoder,
        "bytes": stored.size,
    }


def _report_facts(report: LogReport) -> dict[str, Any]:
    return {
        "events": report.events,
        "first": report.first,
        "last": report.last,
        "kinds": report.kinds,
        "encoders": report.encoders,
        "bytes": report.size,
        "newest": report.newest,
    }


def _verdict(report: LogReport) -> str:
    if not report.events:
        return "intact, no events"
    return (
        f"intact, {report.events:,} events, {report.first} to {report.last},"
        f" {report.size:,} bytes, newest {_minute(report.newest)}; kinds: {_counts(report.kinds)};"
        f" encoders: {_counts(report.encoders, _FINGERPRINT_CHARACTERS)}"
    )


def _minute(time: datetime | None) -> str:
    return "" if time is None else f"{time:%Y-%m-%d %H:%M:%S} UTC"


def _counts(counts: Mapping[str, int], characters: int | None = None) -> str:
    return ", ".join(f"{name[:characters]} {count:,}" for name, count in counts.items())


def _lines(objects: Iterable[Mapping[str, Any]]) -> None:
    console = open_console()  # which also ends quietly when `head` closes the pipe
    for document in objects:
        console.out(orjson.dumps(document).decode(), highlight=False)


def _say(sentence: str, *, stderr: bool = False) -> None:
    """One line, whatever the terminal's width."""
    open_console(stderr=stderr).print(sentence, soft_wrap=True)

"""`keymatch log`: show, verify, save or cut the label log, for the person on call."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import orjson
from cyclopts import Parameter
from rich.table import Table
from rich.text import Text

from service.command_line import DEFAULT_CACHE, CacheOption, open_console, say
from service.core.bundle.bundle import open_bundle
from service.core.bundle.object_store import local_bundle
from service.core.changes import CHANGES
from service.core.errors import InvalidConfig, LogCorrupt
from service.core.files.atomic import new_folder, refuse_unusable, refuse_unwritable, write_file
from service.core.label_log import LabelLog, maintenance, open_log
from service.core.label_log.maintenance import LogReport, StoredEvent
from service.core.replay import held_link
from service.core.types import Event

STANDARD_OUTPUT = Path("-")
_FINGERPRINT_CHARACTERS = 12  # enough to tell encoders apart


def log(
    *,
    state: str,
    after: int = 0,
    check: bool = False,
    recover: Path | None = None,
    compact: str | None = None,
    drop_items: bool = False,
    limit: int = 100,
    json: Annotated[Path | None, Parameter(allow_leading_hyphen=True)] = None,
    cache: CacheOption = DEFAULT_CACHE,
) -> int:
    """Show the label log, verify it, save its intact events, or cut events that a snapshot holds.

    Only `--compact` changes the log. The service may run meanwhile. Exit status 1: `--check` found
    an event that is missing or altered, `--recover` could not save all, or `--compact` cut nothing
    because items would be lost. 2: the log cannot be read or cut.

    Parameters
    ----------
    state
        The state folder, or the URL postgresql://USER:PASSWORD@HOST:PORT/DATABASE.
    after
        Show or verify the events after this number; a negative number counts from the end.
    check
        Verify every event and print a verdict.
    recover
        Write every intact event into a new log in this new state folder, and say which are lost.
    compact
        Cut the events that the snapshot in this bundle's folder, or at its URL, holds. From then on
        the log serves only with this snapshot or a later one, so reload it first, and keep a copy
        of it.
    limit
        Show at most this many events.
    json
        Write one JSON object per line to this file instead; - is the standard output.
    cache
        Folder for copies of bundles that URLs name.
    """
    if limit < 1:
        raise InvalidConfig("limit must be at least 1", field="limit")
    if compact is not None:
        return _compact(state, local_bundle(compact, cache), drop_items=drop_items)
    if recover is not None:
        refuse_unusable(recover)
    if json is not None and json != STANDARD_OUTPUT:
        if str(json).startswith("-"):
            raise InvalidConfig(f"--json takes a file, or - for the standard output, not {json}")
        refuse_unwritable(json.absolute().parent)
    with closing(open_log(state, create=False)) as opened:
        if recover is not None:
            return _recover(opened, recover)
        last = opened.last_sequence()
        after = min(max(last + after if after < 0 else after, opened.cut()), last)
        if check:
            return _check(opened, after=after, json=json)
        return _show(opened, after=after, last=last, limit=limit, json=json)


def _show(opened: LabelLog, *, after: int, last: int, limit: int, json: Path | None) -> int:
    shown = maintenance.stored_events(opened, after=after, until=after + limit)
    if json is not None:
        _lines(json, map(_facts, shown))
        return 0
    table = Table("event", "time (UTC)", "kind")
    for column in table.columns:
        column.no_wrap = True
    table.add_column("content")
    for stored in shown:
        event = stored.event
        time = f"{stored.written:%Y-%m-%d %H:%M:%S}"
        # A cell is cut at the terminal's edge; `--json` has the whole event.
        content = Text(_summary(event), no_wrap=True, overflow="ellipsis")
        table.add_row(str(event.sequence), time, event.kind, content)
    open_console().print(table)
    more = f"; continue with --after {after + limit}" if after + limit < last else ""
    say(f"{opened.place}: {last:,} events{more}")
    return 0


def _check(opened: LabelLog, *, after: int, json: Path | None) -> int:
    try:
        report = maintenance.verify(opened, after=after)
    except LogCorrupt as error:
        say(f"corrupt: {error}", stderr=True)
        return 1
    if json is not None:
        facts = {"bytes" if name == "size" else name: fact for name, fact in asdict(report).items()}
        _lines(json, [{"place": opened.place, "id": opened.id, **facts}])
    else:
        say(f"{opened.place}: {_verdict(report)}")
    return 0


def _recover(opened: LabelLog, folder: Path) -> int:
    with new_folder(folder) as partial, closing(open_log(partial)) as target:
        found = maintenance.recover(opened, target)
    say(f"{opened.place}: {found}")
    say(f"{folder}: the whole events, numbered anew from 1; idempotency keys are not kept")
    if found.cut:
        say(
            f"events 1 to {found.cut} had been cut before: serve {folder} only with the snapshot"
            " that holds them; with any other bundle their labels, clicks and items are missing"
        )
    return 1 if found.lost else 0


def _compact(state: str, bundle: Path, *, drop_items: bool) -> int:
    open_log(state, create=False).close()  # raises instead of creating an empty log
    with closing(open_log(state)) as opened:
        before = opened.cut()
        facts = open_bundle(bundle).manifest
        held = held_link(facts, opened)
        if facts.items is None and not drop_items:
            lost = maintenance.lost_items(opened, until=held.sequence)
            if lost:
                say(
                    f"error: nothing was cut: {bundle} is a snapshot without an item memory, and"
                    f" {lost} are only in {opened.place}. Write a snapshot of a bundle with an item"
                    " memory (`keymatch snapshot --bundle ... --state ... --out ...`), which holds"
                    " labels, clicks and items; reload it and cut by that one. Or give --drop-items"
                    " if the items may go",
                    stderr=True,
                )
                return 1
        cut = maintenance.compact(opened, held)
        kept = opened.last_sequence() - cut
    say(f"{opened.place}: {cut - before:,} events were cut, {kept:,} are kept")
    if cut < held.sequence:
        say(
            f"events {cut + 1} to {held.sequence} are in {bundle}, too, but a start reads there"
            " which bundle to serve: they can be cut once the snapshot has been reloaded"
        )
    return 0


def _summary(event: Event) -> str:
    """Join the event's main fields, with control characters from clients replaced."""
    values = (event.body.get(name) for name in CHANGES[event.kind].summary)
    texts = (", ".join(map(str, value)) if isinstance(value, list) else value for value in values)
    line = " | ".join(str(text) for text in texts if text)
    return "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in line)


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


def _verdict(report: LogReport) -> str:
    if not report.events:
        return "intact, no events"
    return (
        f"intact, {report.events:,} events, {report.first} to {report.last},"
        f" {report.size:,} bytes, newest {report.newest:%Y-%m-%d %H:%M:%S} UTC;"
        f" kinds: {_counts(report.kinds)};"
        f" encoders: {_counts(report.encoders, _FINGERPRINT_CHARACTERS)}"
    )


def _counts(counts: Mapping[str, int], characters: int | None = None) -> str:
    return ", ".join(f"{name[:characters]} {count:,}" for name, count in counts.items())


def _lines(place: Path, objects: Iterable[Mapping[str, Any]]) -> None:
    """Write a line for each object to a file or standard output."""
    lines = map(orjson.dumps, objects)
    if place != STANDARD_OUTPUT:
        write_file(place, b"".join(line + b"\n" for line in lines))
        return
    console = open_console()  # it also ends quietly when `head` closes the pipe
    for line in lines:
        console.out(line.decode())

"""Links: places in a log's chain, kept by a snapshot, a replica or a note, and asked for later."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from service.core.errors import LogCorrupt, LogCut, LogReplaced
from service.core.label_log.schema import events, log_format


def _stored(column: sa.Column[Any]) -> sa.ColumnElement[Any]:
    """The column without conversion, so that a value of a wrong type can be named."""
    return sa.type_coerce(column, sa.types.NullType()).label(column.name)


_last = (
    sa.select(events.c.sequence, _stored(events.c.chain))
    .order_by(events.c.sequence.desc())
    .limit(1)
)
_at = sa.select(events.c.sequence, _stored(events.c.chain)).where(
    events.c.sequence == sa.bindparam("sequence")
)
_cut = sa.select(log_format.c.cut.label("sequence"), _stored(log_format.c.cut_chain).label("chain"))


@dataclass(frozen=True, kw_only=True)
class Link:
    """An event's number and the hash over all events up to it; number 0 is the empty log."""

    sequence: int
    chain: bytes


def cut_link(connection: sa.Connection, *, place: str) -> Link:
    """Return the newest event that was cut from the log's beginning; number 0 if none was."""
    return _link(connection.execute(_cut).one(), place)


def last_link(connection: sa.Connection, *, place: str) -> Link:
    """Return the newest event; the newest one that was cut where none is left."""
    row = connection.execute(_last).first()
    return cut_link(connection, place=place) if row is None else _link(row, place)


def link_at(connection: sa.Connection, sequence: int, *, place: str) -> Link:
    """Return the link of an event, or of the empty log (0).

    Raises `LogCut` for an event before the newest one that was cut, `LogCorrupt` for a missing one.
    """
    row = connection.execute(_at, {"sequence": sequence}).first()
    if row is not None:
        return _link(row, place)
    cut = require_kept(connection, sequence, place=place)
    if sequence == cut.sequence:
        return cut
    raise LogCorrupt(f"{place}: event {sequence} is missing")


def require_kept(connection: sa.Connection, after: int, *, place: str) -> Link:
    """Return the newest event that was cut; raises `LogCut` if it comes after number `after`."""
    cut = cut_link(connection, place=place)
    if after < cut.sequence:
        raise LogCut(
            f"{place} begins after event {cut.sequence}, and the events after {after} are needed:"
            f" serve a snapshot of version {cut.sequence} or later, which holds them"
        )
    return cut


def require_link(connection: sa.Connection, known: Link, *, knows: str, place: str) -> None:
    """Raise `LogReplaced` unless the log holds the event `known`.

    `knows` is part of the message, for example "the bundle b holds": it names where the event is
    known from. Raises `LogCut` if the event was cut.
    """
    last = last_link(connection, place=place)
    if last.sequence < known.sequence:
        raise LogReplaced(
            f"{place} ends at event {last.sequence}, but {knows} event {known.sequence}: the log"
            " was cut or is an older copy"
        )
    at = last
    if last.sequence > known.sequence:
        at = link_at(connection, known.sequence, place=place)
    if at.chain != known.chain:
        raise LogReplaced(
            f"{place} has another event {known.sequence} than {knows}: the log is another copy,"
            " which went on by itself"
        )


def _link(row: Any, place: str) -> Link:
    if not isinstance(row.chain, bytes):
        raise LogCorrupt(f"{place}: event {row.sequence} was altered: its chain is no hash")
    return Link(sequence=row.sequence, chain=row.chain)

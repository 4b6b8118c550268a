"""Events as stored rows: their checksums, and the chain that links each event to all before it.

A checksum shows that one event is whole. The chain shows that a log is still the same log: in an
older copy, or if events were lost at the end or rewritten, the hash at a number differs.

    chain(0) = BLAKE2b(id of the log)
    chain(n) = BLAKE2b(chain(n - 1), sequence, kind, body, vectors, encoder)

A link is a place in this chain. A snapshot, a replica or a note keeps a link, to check it later.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np
import orjson
import sqlalchemy as sa

from service.core.changes import CHANGES
from service.core.errors import LogCorrupt, LogCut, LogReplaced
from service.core.label_log.schema import events, log_format
from service.core.types import Event

PAGE_EVENTS = 1000  # read per query: a few MB, and few round trips
CHAIN_BYTES = 16
_NO_END = 2**63 - 1

# Execution option for statements whose results are mostly bytes.
MOSTLY_BYTES = "keymatch_mostly_bytes"

Row = sa.Row[Any]


def _stored(column: sa.Column[Any], name: str = "") -> sa.ColumnElement[Any]:
    """Select a column unconverted: a value of a wrong type then fails with the column's name."""
    return sa.type_coerce(column, sa.types.NullType()).label(name or column.name)


_rows = sa.select(*map(_stored, events.c))
_page = (
    _rows.where(
        events.c.sequence > sa.bindparam("after"), events.c.sequence <= sa.bindparam("until")
    )
    .order_by(events.c.sequence)
    .limit(sa.bindparam("limit"))
    .execution_options(**{MOSTLY_BYTES: True})
)
_newest = (
    _rows.where(events.c.kind == sa.bindparam("kind")).order_by(events.c.sequence.desc()).limit(1)
)
_links = sa.select(events.c.sequence, _stored(events.c.chain))
_last = _links.order_by(events.c.sequence.desc()).limit(1)
_at = _links.where(events.c.sequence == sa.bindparam("sequence"))
_cut = sa.select(log_format.c.cut.label("sequence"), _stored(log_format.c.cut_chain, "chain"))


@dataclass(frozen=True, kw_only=True)
class Link:
    """An event's number, and the hash over all events up to it. Number 0 is the empty log."""

    sequence: int
    chain: bytes


@dataclass(frozen=True, kw_only=True)
class AnsweredRequest:
    """A write with an idempotency key: the digest of the request, and its answer as JSON."""

    key: str
    digest: str
    version: int
    answer: Mapping[str, Any]


def first_chain(log_id: str) -> bytes:
    """Return the chain of an empty log."""
    return blake2b(log_id.encode(), digest_size=CHAIN_BYTES).digest()


class Content(NamedTuple):
    """The columns of an event that its checksum and its chain cover."""

    sequence: int
    kind: str
    body: bytes
    vectors: bytes
    encoder: str

    def joined(self) -> bytes:
        """Return the five values, joined by zero bytes."""
        number, kind, encoder = b"%d" % self.sequence, self.kind.encode(), self.encoder.encode()
        return b"\0".join((number, kind, self.body, self.vectors, encoder))

    def checksum(self) -> int:
        """Return the CRC-32 of the values."""
        return zlib.crc32(self.joined())

    def chain(self, before: bytes) -> bytes:
        """Return the chain of this event, after the event whose chain is `before`."""
        return blake2b(before + self.joined(), digest_size=CHAIN_BYTES).digest()


def row_of(event: Event, *, before: bytes) -> dict[str, Any]:
    """Return an event's row to store, with the current time; `before` is the previous chain."""
    assert event.vectors is not None
    content = Content(
        sequence=event.sequence,
        kind=event.kind,
        body=orjson.dumps(event.body),
        vectors=event.vectors.tobytes(),
        encoder=event.encoder,
    )
    return {
        **content._asdict(),
        "checksum": content.checksum(),
        "written": time.time(),
        "chain": content.chain(before),
    }


def event_of(row: Sequence[Any], *, place: str) -> Event:
    """Return the event of a stored row; its vectors are flat.

    Raises `LogCorrupt` for a wrong checksum, an unknown kind, or content that no version writes.
    """
    stored = Content(*row[:5])
    sequence, kind, body, vectors, encoder = stored
    try:
        intact = row[5] == stored.checksum()
    except (AttributeError, TypeError):  # text instead of bytes, or bytes instead of text
        intact = False
    if not intact:
        raise LogCorrupt(f"{place}: event {sequence} was altered: its checksum is wrong")
    if kind not in CHANGES:
        raise LogCorrupt(
            f"{place}: event {sequence} is of the kind {kind!r}, which this version does not know"
        )
    try:
        content, halves = orjson.loads(body), np.frombuffer(vectors, np.float16)
    except ValueError as error:  # not JSON, or an odd number of bytes
        raise LogCorrupt(f"{place}: event {sequence} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise LogCorrupt(f"{place}: event {sequence} cannot be read: its body is no JSON object")
    return Event(sequence=sequence, kind=kind, body=content, vectors=halves, encoder=encoder)


def cut_link(connection: sa.Connection, *, place: str) -> Link:
    """Return the newest event that was cut from the log's beginning; number 0 stands for none."""
    return _link(connection.execute(_cut).one(), place)


def last_link(connection: sa.Connection, *, place: str) -> Link:
    """Return the newest event; if none is left, the newest that was cut."""
    row = connection.execute(_last).first()
    return cut_link(connection, place=place) if row is None else _link(row, place)


def link_at(connection: sa.Connection, sequence: int, *, place: str) -> Link:
    """Return the link of an event; number 0 is the empty log.

    Raises `LogCut` for an event before the newest that was cut, and `LogCorrupt` for a missing one.
    """
    row = connection.execute(_at, {"sequence": sequence}).first()
    if row is not None:
        return _link(row, place)
    cut = _require_kept(connection, sequence, place=place)
    if sequence == cut.sequence:
        return cut
    raise LogCorrupt(f"{place}: event {sequence} is missing")


def require_link(connection: sa.Connection, known: Link, *, knows: str, place: str) -> None:
    """Raise `LogReplaced` unless the log holds the event `known`, or `LogCut` if it was cut.

    `knows` says in the message who knows the event, such as "the bundle b holds".
    """
    at = last_link(connection, place=place)
    if at.sequence < known.sequence:
        raise LogReplaced(
            f"{place} ends at event {at.sequence}, but {knows} event {known.sequence}: the log"
            " was cut or is an older copy"
        )
    if at.sequence > known.sequence:
        at = link_at(connection, known.sequence, place=place)
    if at.chain != known.chain:
        raise LogReplaced(
            f"{place} has another event {known.sequence} than {knows}: the log is another copy,"
            " which went on by itself"
        )


def _require_kept(connection: sa.Connection, after: int, *, place: str) -> Link:
    """Return the newest event that was cut; raises `LogCut` if its number is above `after`."""
    cut = cut_link(connection, place=place)
    if after < cut.sequence:
        raise LogCut(
            f"{place} begins after event {cut.sequence}, and the events after {after} are needed:"
            f" serve a snapshot of version {cut.sequence} or later, which holds them"
        )
    return cut


def _link(row: Any, place: str) -> Link:
    if not isinstance(row.chain, bytes):
        raise LogCorrupt(f"{place}: event {row.sequence} was altered: its chain is no hash")
    return Link(sequence=row.sequence, chain=row.chain)


class EventReader:
    """Reads events in order; `known` is the newest event that this process has written or read."""

    place: str
    known: Link | None

    def _connection(self) -> AbstractContextManager[sa.Connection]:
        """Lend a connection for reading; raises the database's errors as `LogError`."""
        raise NotImplementedError

    def link_at(self, sequence: int) -> Link:
        """Return the link of an event; raises `LogCut`, or `LogCorrupt` if it is missing."""
        if self.known is not None and self.known.sequence == sequence:
            return self.known
        with self._connection() as connection:
            return link_at(connection, sequence, place=self.place)

    def newest(self, kind: str) -> Event | None:
        """Return the newest event of a kind, or None."""
        with self._connection() as connection:
            row = connection.execute(_newest, {"kind": kind}).first()
        return None if row is None else event_of(row, place=self.place)

    def read(self, *, after: int = 0, until: int | None = None) -> Iterator[Event]:
        """Yield the events after number `after`, up to `until` if it is given, in order.

        Raises `LogCorrupt`, which names the event, at a gap, at a wrong checksum or chain, or for
        an unknown kind. Raises `LogCut` if the first of these events was cut.
        """
        return (event for _, event in self.verified(after=after, until=until))

    def verified(self, *, after: int = 0, until: int | None = None) -> Iterator[tuple[Row, Event]]:
        """Yield the events of `read`, each with its stored row; raises the same errors."""
        rows = self.rows(after=after, until=until)
        chain = self.link_at(after).chain
        for row in rows:
            event = event_of(row, place=self.place)
            stored: Sequence[Any] = row
            chain = Content(*stored[:5]).chain(chain)
            if row.chain != chain:
                raise LogCorrupt(
                    f"{self.place}: event {event.sequence} does not follow from the events before"
                    " it: one of them was altered or replaced"
                )
            yield row, event

    def rows(self, *, after: int = 0, until: int | None = None) -> Iterator[Row]:
        """Yield the unverified rows of the same events; raises `LogCorrupt` only at a gap."""
        bounds = {"until": _NO_END if until is None else until, "limit": PAGE_EVENTS}
        while True:
            with self._connection() as connection:
                page = connection.execute(_page, {"after": after, **bounds}).all()
                if page and page[0].sequence > after + 1:
                    _require_kept(connection, after, place=self.place)
            for row in page:
                if row.sequence != after + 1:
                    raise LogCorrupt(f"{self.place}: event {after + 1} is missing")
                after += 1
                yield row
            if len(page) < PAGE_EVENTS:
                return

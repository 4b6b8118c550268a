"""Events as stored rows and back; a checksum detects rows that were altered."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
import sqlalchemy as sa

from service.core.changes import CHANGES
from service.core.errors import LogCorrupt
from service.core.label_log.chain import next_chain
from service.core.label_log.links import Link, require_kept
from service.core.label_log.schema import events
from service.core.types import Event, Halves

EVENT_KINDS = tuple(CHANGES)

PAGE_EVENTS = 1000  # read in one query: a few MB, and few round trips
_NO_END = 2**63 - 1

# The execution option of statements whose results are mostly bytes.
MOSTLY_BYTES = "keymatch_mostly_bytes"

Row = sa.Row[Any]

# The columns without conversion: a value of a wrong type then fails its checksum, with a clear
# error.
_stored: list[sa.ColumnElement[Any]] = [
    sa.type_coerce(column, sa.types.NullType()).label(column.name) for column in events.c
]
_page = (
    sa.select(*_stored)
    .where(events.c.sequence > sa.bindparam("after"), events.c.sequence <= sa.bindparam("until"))
    .order_by(events.c.sequence)
    .limit(sa.bindparam("limit"))
    .execution_options(**{MOSTLY_BYTES: True})
)
_newest = (
    sa.select(*_stored)
    .where(events.c.kind == sa.bindparam("kind"))
    .order_by(events.c.sequence.desc())
    .limit(1)
)


@dataclass(frozen=True, kw_only=True)
class NewEvent:
    """An event that the log has not numbered yet; vectors are fp16 [n, d], n may be 0."""

    kind: str
    body: Mapping[str, Any]
    vectors: Halves


@dataclass(frozen=True, kw_only=True)
class AnsweredRequest:
    """A write that carried an idempotency key: the request's digest, and its answer as JSON."""

    key: str
    digest: str
    version: int
    answer: Mapping[str, Any]


def page_after(
    connection: sa.Connection, after: int, until: int | None, *, place: str
) -> Sequence[Row]:
    """Return at most `PAGE_EVENTS` rows after number `after`, in order.

    Raises `LogCut` where the next ones were cut.
    """
    bounds = {"after": after, "until": _NO_END if until is None else until, "limit": PAGE_EVENTS}
    page = connection.execute(_page, bounds).all()
    if page and page[0].sequence > after + 1:
        require_kept(connection, after, place=place)
    return page


def newest_of(connection: sa.Connection, kind: str) -> Row | None:
    """Return the newest row of a kind, None if there is none."""
    return connection.execute(_newest, {"kind": kind}).first()


def gapless_rows(fetch: Callable[[int], Sequence[Row]], *, after: int, place: str) -> Iterator[Row]:
    """Yield all rows after number `after`; `fetch` returns the page of rows after a number.

    Raises `LogCorrupt` at a gap.
    """
    while True:
        page = fetch(after)
        for row in page:
            if row.sequence != after + 1:
                raise LogCorrupt(f"{place}: event {after + 1} is missing")
            after += 1
            yield row
        if len(page) < PAGE_EVENTS:
            return


def linked(rows: Iterable[Row], before: Link, *, place: str) -> Iterator[tuple[Row, Event]]:
    """Yield each row with its event; `before` is the link of the event before the first.

    Raises `LogCorrupt` for an event that was altered, or that does not follow from those before it.
    """
    chain = before.chain
    for row in rows:
        event = event_of(row, place=place)
        stored: Sequence[Any] = row
        sequence, kind, body, vectors, encoder = stored[:5]
        chain = next_chain(
            chain, sequence=sequence, kind=kind, body=body, vectors=vectors, encoder=encoder
        )
        if row[-1] != chain:
            raise LogCorrupt(
                f"{place}: event {sequence} does not follow from the events before it: one of them"
                " was altered or replaced"
            )
        yield row, event


def row_of(event: Event, *, before: bytes) -> dict[str, Any]:
    """Return the stored row of an event, with the present time as its time of writing.

    `before` is the chain of the event before it.
    """
    assert event.vectors is not None
    content: dict[str, Any] = {
        "sequence": event.sequence,
        "kind": event.kind,
        "body": orjson.dumps(event.body),
        "vectors": event.vectors.tobytes(),
        "encoder": event.encoder,
    }
    return {
        **content,
        "checksum": _checksum(**content),
        "written": time.time(),
        "chain": next_chain(before, **content),
    }


def event_of(row: Sequence[Any], *, place: str) -> Event:
    """Return the event of a stored row; its vectors are flat.

    Raises `LogCorrupt` for a wrong checksum, for a kind that this version does not know, and for
    content that no version writes, as of a program with a defect.
    """
    sequence, kind, body, vectors, encoder, checksum = row[:6]
    try:
        intact = checksum == _checksum(
            sequence=sequence, kind=kind, body=body, vectors=vectors, encoder=encoder
        )
    except (AttributeError, TypeError):  # text in place of bytes, or bytes in place of text
        intact = False
    if not intact:
        raise LogCorrupt(f"{place}: event {sequence} was altered: its checksum is wrong")
    if kind not in EVENT_KINDS:
        raise LogCorrupt(
            f"{place}: event {sequence} is of the kind {kind!r}, which this version does not know"
        )
    try:
        content, halves = orjson.loads(body), np.frombuffer(vectors, np.float16)
    except ValueError as error:  # no JSON, or an odd number of bytes
        raise LogCorrupt(f"{place}: event {sequence} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise LogCorrupt(f"{place}: event {sequence} cannot be read: its body is no JSON object")
    return Event(sequence=sequence, kind=kind, body=content, vectors=halves, encoder=encoder)


def _checksum(*, sequence: int, kind: str, body: bytes, vectors: bytes, encoder: str) -> int:
    """Return the CRC-32 of the five values, joined by zero bytes."""
    head = zlib.crc32(b"%d\0%b\0%b\0" % (sequence, kind.encode(), body))
    return zlib.crc32(b"\0" + encoder.encode(), zlib.crc32(vectors, head))

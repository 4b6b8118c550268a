"""Events and answered requests as rows, and back; what was altered is noticed here."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
import sqlalchemy as sa

from service.core.errors import LogCorrupt
from service.core.label_log.schema import events
from service.core.types import Event, Halves

PUT_LABEL = "label.put"
DELETE_LABEL = "label.delete"
PUT_INSTANCE = "instance.put"
USE_BUNDLE = "bundle.use"
EVENT_KINDS = (PUT_LABEL, DELETE_LABEL, PUT_INSTANCE, USE_BUNDLE)

PAGE_EVENTS = 1000  # read at once: some MB, and few enough round trips
_NO_END = 2**63 - 1

# The execution option of statements whose answers are mostly bytes.
MOSTLY_BYTES = "keymatch_mostly_bytes"

Row = sa.Row[Any]

# The columns as they are stored: a value of another type fails its checksum, not its conversion.
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
_last = sa.select(sa.func.max(events.c.sequence))


@dataclass(frozen=True, kw_only=True)
class NewEvent:
    """An event before the log has given it its place; vectors are fp16 [n, d], n may be 0."""

    kind: str
    body: Mapping[str, Any]
    vectors: Halves


@dataclass(frozen=True, kw_only=True)
class AnsweredRequest:
    """A write that carried an idempotency key: `digest` of the request, and its answer (JSON)."""

    key: str
    digest: str
    version: int
    answer: Mapping[str, Any]


def page_after(connection: sa.Connection, after: int, until: int | None) -> Sequence[Row]:
    """At most `PAGE_EVENTS` rows behind `after`, in order."""
    bounds = {"after": after, "until": _NO_END if until is None else until, "limit": PAGE_EVENTS}
    return connection.execute(_page, bounds).all()


def newest_of(connection: sa.Connection, kind: str) -> Row | None:
    """The newest row of a kind."""
    return connection.execute(_newest, {"kind": kind}).first()


def last_sequence(connection: sa.Connection) -> int:
    """The newest event's number, 0 for an empty log."""
    return connection.scalar(_last) or 0


def rows(fetch: Callable[[int], Sequence[Row]], *, after: int, place: str) -> Iterator[Row]:
    """All rows behind `after`; `fetch` gives the page behind a number.

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


def row_of(event: Event) -> dict[str, Any]:
    """What is stored of an event, written now."""
    assert event.vectors is not None
    body, vectors = orjson.dumps(event.body), event.vectors.tobytes()
    return {
        "sequence": event.sequence,
        "kind": event.kind,
        "body": body,
        "vectors": vectors,
        "encoder": event.encoder,
        "checksum": _checksum(event.sequence, event.kind, body, vectors, event.encoder),
        "written": time.time(),
    }


def event_of(row: Sequence[Any], *, place: str) -> Event:
    """A stored event; vectors are flat.

    Raises `LogCorrupt` for a wrong checksum and for a kind that this build does not know.
    """
    sequence, kind, body, vectors, encoder, checksum, _ = row
    try:
        intact = checksum == _checksum(sequence, kind, body, vectors, encoder)
    except (AttributeError, TypeError):  # text where bytes were written, or the other way round
        intact = False
    if not intact:
        raise LogCorrupt(f"{place}: event {sequence} is not as it was written")
    if kind not in EVENT_KINDS:
        raise LogCorrupt(f"{place}: event {sequence} is of the unknown kind {kind!r}")
    return Event(
        sequence=sequence,
        kind=kind,
        body=orjson.loads(body),
        vectors=np.frombuffer(vectors, np.float16),
        encoder=encoder,
    )


def _checksum(sequence: int, kind: str, body: bytes, vectors: bytes, encoder: str) -> int:
    """CRC-32 of the five values with a zero byte between each two."""
    head = zlib.crc32(b"%d\0%b\0%b\0" % (sequence, kind.encode(), body))
    return zlib.crc32(b"\0" + encoder.encode(), zlib.crc32(vectors, head))

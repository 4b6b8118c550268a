"""What a process does while it alone may append."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import orjson
import sqlalchemy as sa

from service.core.errors import LogError
from service.core.label_log.database import Database, failures_of
from service.core.label_log.rows import (
    EVENT_KINDS,
    AnsweredRequest,
    NewEvent,
    Row,
    event_of,
    last_sequence,
    page_after,
    row_of,
    rows,
)
from service.core.label_log.schema import events as events_table
from service.core.label_log.schema import requests
from service.core.types import Event

# Clients repeat a request within minutes; a day also covers a queue that was stopped overnight.
REMEMBERED_SECONDS = 24 * 3600
FORGOTTEN_AT_ONCE = 100  # with one: always fewer old ones, and no write pays for a night of them


class Appending:
    """The log under its lock; `last` is the newest event's number, own appends included."""

    def __init__(self, database: Database, connection: sa.Connection) -> None:
        """Take the number from which to go on."""
        self._database, self._connection = database, connection
        self.last = last_sequence(connection)

    def read(self, *, after: int) -> Iterator[Event]:
        """All events behind `after`: what others have appended; raises as `LabelLog.read`."""

        def fetch(last: int) -> Sequence[Row]:
            with failures_of(self._database, when="read"):
                return page_after(self._connection, last, None)

        place = self._database.place
        return (event_of(row, place=place) for row in rows(fetch, after=after, place=place))

    def answered(self, key: str) -> AnsweredRequest | None:
        """The write of the last 24 hours that carried this idempotency key."""
        query = sa.select(requests).where(requests.c.key == key, requests.c.written >= _day_ago())
        with failures_of(self._database, when="read"):
            row = self._connection.execute(query).first()
        if row is None:
            return None
        return AnsweredRequest(
            key=row.key, digest=row.digest, version=row.version, answer=orjson.loads(row.answer)
        )

    def append(self, events: Sequence[NewEvent], *, encoder: str) -> list[Event]:
        """Number events and write them; they are in the log once the transaction is committed.

        Raises `LogError`, and then the whole transaction must fail.
        """
        numbered = [
            Event(
                sequence=self.last + place,
                kind=event.kind,
                body=event.body,
                vectors=event.vectors,
                encoder=encoder,
            )
            for place, event in enumerate(events, start=1)
        ]
        if not numbered:
            return []
        for event in numbered:  # nobody could read the log beyond it
            if event.kind not in EVENT_KINDS:
                raise LogError(f"{event.kind!r} is no kind of event")
        with failures_of(self._database, when="written"):
            self._connection.execute(events_table.insert(), [row_of(event) for event in numbered])
            self._database.announce(self._connection)
        self.last = numbered[-1].sequence
        return numbered

    def remember(self, request: AnsweredRequest) -> None:
        """Keep a write's answer under its idempotency key, and forget some that are too old.

        Raises `LogError` for a key that was used within 24 hours: ask `answered` first.
        """
        old = requests.c.written < _day_ago()
        oldest = (
            sa.select(requests.c.key)
            .where(old)
            .order_by(requests.c.written)
            .limit(FORGOTTEN_AT_ONCE)
        )
        forget = requests.delete().where(
            old, sa.or_(requests.c.key == request.key, requests.c.key.in_(oldest))
        )
        keep = requests.insert().values(
            key=request.key,
            digest=request.digest,
            version=request.version,
            answer=orjson.dumps(request.answer),
            written=time.time(),
        )
        with failures_of(self._database, when="written"):
            self._connection.execute(forget)
            self._connection.execute(keep)


def _day_ago() -> float:
    return time.time() - REMEMBERED_SECONDS

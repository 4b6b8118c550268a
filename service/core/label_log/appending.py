"""`Appending`: what a process can do while it holds the log's lock."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

import orjson
import sqlalchemy as sa

from service.core.errors import LogError
from service.core.label_log.database import Database, as_log_errors
from service.core.label_log.links import Link, last_link, link_at, require_link
from service.core.label_log.rows import (
    EVENT_KINDS,
    AnsweredRequest,
    NewEvent,
    Row,
    gapless_rows,
    linked,
    page_after,
    row_of,
)
from service.core.label_log.schema import events as events_table
from service.core.label_log.schema import log_format, requests
from service.core.types import Event

# Clients repeat a request within minutes; a day also covers a client that was stopped overnight.
REMEMBERED_SECONDS = 24 * 3600
# Each write deletes at most this many expired keys: more than it adds, so that they cannot pile up,
# and few enough that no single write pays for all that expired overnight.
FORGOTTEN_AT_ONCE = 100


class Appending:
    """The log under its lock; `last` is the newest event's number, counting those appended here."""

    def __init__(
        self, database: Database, connection: sa.Connection, *, known: Link | None
    ) -> None:
        """Find the newest event; new events are numbered after it.

        `known` is the newest event that this process knows. Raises `LogReplaced` unless the log
        holds it.
        """
        self._database, self._connection = database, connection
        newest = last_link(connection, place=database.place)
        if known is not None and newest != known:
            require_link(
                connection, known, knows="this process has written or read", place=database.place
            )
        self._known, self._begun = known, newest
        self.last, self._chain = newest.sequence, newest.chain

    @property
    def newest(self) -> Link:
        """The newest event, counting those appended here."""
        return Link(sequence=self.last, chain=self._chain)

    @property
    def appended(self) -> bool:
        """Whether anything was appended here."""
        return self.last > self._begun.sequence

    def read(self, *, after: int) -> Iterator[Event]:
        """Yield the events after number `after`; raises the same errors as `LabelLog.read`."""

        def fetch(last: int) -> Sequence[Row]:
            with as_log_errors(self._database, action="read"):
                return page_after(self._connection, last, None, place=self._database.place)

        place = self._database.place
        with as_log_errors(self._database, action="read"):
            before = (
                self._known
                if self._known is not None and self._known.sequence == after
                else link_at(self._connection, after, place=place)
            )
        rows = gapless_rows(fetch, after=after, place=place)
        return (event for _, event in linked(rows, before, place=place))

    def answered(self, key: str) -> AnsweredRequest | None:
        """Return the write of the last 24 hours that had this idempotency key, if there is one."""
        query = sa.select(requests).where(requests.c.key == key, requests.c.written >= _day_ago())
        with as_log_errors(self._database, action="read"):
            row = self._connection.execute(query).first()
        if row is None:
            return None
        return AnsweredRequest(
            key=row.key, digest=row.digest, version=row.version, answer=orjson.loads(row.answer)
        )

    def append(self, events: Sequence[NewEvent], *, encoder: str) -> list[Event]:
        """Number events and write them; they are in the log once the transaction is committed.

        `encoder` is the fingerprint of the encoder that made their vectors. Raises `LogError`; the
        caller must then let the whole transaction fail.
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
        for event in numbered:  # no reader could get past an unknown kind
            if event.kind not in EVENT_KINDS:
                raise LogError(
                    f"{event.kind!r} is not a kind of event; known: {', '.join(EVENT_KINDS)}"
                )
        rows, chain = [], self._chain
        for event in numbered:
            rows.append(row_of(event, before=chain))
            chain = rows[-1]["chain"]
        with as_log_errors(self._database, action="written"):
            self._connection.execute(events_table.insert(), rows)
            self._database.notify(self._connection)
        self.last, self._chain = numbered[-1].sequence, chain
        return numbered

    def restore(self, event: Event, *, written: float) -> None:
        """Write an event of another log under the next number, with its time of writing."""
        row = row_of(replace(event, sequence=self.last + 1), before=self._chain)
        with as_log_errors(self._database, action="written"):
            self._connection.execute(events_table.insert(), {**row, "written": written})
        self.last, self._chain = self.last + 1, row["chain"]

    def cut(self, until: int) -> None:
        """Delete the events up to number `until` from the log's beginning.

        Raises `LogCut` where they were cut before.
        """
        place = self._database.place
        with as_log_errors(self._database, action="written"):
            link = link_at(self._connection, until, place=place)
            cut = {"cut": link.sequence, "cut_chain": link.chain}
            self._connection.execute(log_format.update().values(cut))
            self._connection.execute(events_table.delete().where(events_table.c.sequence <= until))

    def remember(self, request: AnsweredRequest) -> None:
        """Keep a write's answer under its idempotency key, and delete some expired keys.

        Raises `LogError` for a key that was used within 24 hours; call `answered` first.
        """
        expired = requests.c.written < _day_ago()
        oldest = (
            sa.select(requests.c.key)
            .where(expired)
            .order_by(requests.c.written)
            .limit(FORGOTTEN_AT_ONCE)
        )
        forget = requests.delete().where(
            expired, sa.or_(requests.c.key == request.key, requests.c.key.in_(oldest))
        )
        keep = requests.insert().values(
            key=request.key,
            digest=request.digest,
            version=request.version,
            answer=orjson.dumps(request.answer),
            written=time.time(),
        )
        with as_log_errors(self._database, action="written"):
            self._connection.execute(forget)
            self._connection.execute(keep)


def _day_ago() -> float:
    return time.time() - REMEMBERED_SECONDS

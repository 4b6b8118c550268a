"""`LabelLog`: read, append to and watch one label log."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from time import monotonic

import orjson
import sqlalchemy as sa

from service.core.changes import Change
from service.core.errors import LogCut, LogError, LogReplaced
from service.core.label_log.database import Database, as_log_errors
from service.core.label_log.rows import (
    AnsweredRequest,
    EventReader,
    Link,
    Row,
    cut_link,
    first_chain,
    last_link,
    require_link,
    row_of,
)
from service.core.label_log.schema import FORMAT_VERSION, events, find_id, log_format, requests
from service.core.types import Event

CLOSING_SECONDS = 1.0  # the longest wait of `close` for the watching daemon thread
POLL_SECONDS = 0.1  # pause between two calls while the database sends no signals
LONGEST_PAUSE_SECONDS = 1.0  # the longest pause between two attempts to receive signals again
# Clients repeat a request within minutes. A day also covers a client that was down overnight.
REMEMBERED_SECONDS = 24 * 3600
# Each write deletes at most this many expired keys. It is more than a write adds, so they cannot
# pile up, and so few that no single write pays for all that expired overnight.
FORGOTTEN_AT_ONCE = 100
_KNOWS = "this process has written or read"
log = logging.getLogger("keymatch")


class Appending(EventReader):
    """The log under its lock. `newest_link` is the newest event, including those appended here."""

    def __init__(
        self, database: Database, connection: sa.Connection, *, known: Link | None
    ) -> None:
        """Find the newest event. Raises `LogReplaced` unless the log holds the event `known`."""
        self.place, self.known = database.place, known
        self._database, self._transaction = database, connection
        self.newest_link = self._begun = last_link(connection, place=self.place)
        if known is not None and self.newest_link != known:
            require_link(connection, known, knows=_KNOWS, place=self.place)

    @property
    def last(self) -> int:
        """The number of the newest event, including those appended here."""
        return self.newest_link.sequence

    @property
    def appended(self) -> bool:
        """Whether events were appended here."""
        return self.last > self._begun.sequence

    def answered(self, key: str) -> AnsweredRequest | None:
        """Return the write of the last 24 hours with this idempotency key, or None."""
        query = sa.select(requests).where(requests.c.key == key, requests.c.written >= _day_ago())
        with self._connection() as connection:
            row = connection.execute(query).first()
        if row is None:
            return None
        return AnsweredRequest(
            key=row.key, digest=row.digest, version=row.version, answer=orjson.loads(row.answer)
        )

    def append(self, changes: Sequence[Change], *, encoder: str) -> list[Event]:
        """Number changes as events and write them; they are kept once the transaction is committed.

        `encoder` is the fingerprint of the encoder that made the vectors. Raises `LogError`; the
        caller must then roll back the whole transaction.
        """
        numbered = [
            Event(
                sequence=sequence,
                kind=change.kind,
                body=change.body(),
                vectors=change.vectors,
                encoder=encoder,
            )
            for sequence, change in enumerate(changes, start=self.last + 1)
        ]
        if numbered:
            rows, chain = [], self.newest_link.chain
            for event in numbered:
                rows.append(row_of(event, before=chain))
                chain = rows[-1]["chain"]
            with self._connection("written") as connection:
                connection.execute(events.insert(), rows)
                self._database.notify(connection, numbered[-1].sequence)
            self.newest_link = Link(sequence=numbered[-1].sequence, chain=chain)
        return numbered

    def restore(self, event: Event, *, written: float) -> None:
        """Write an event of another log under the next number, with its original write time."""
        row = row_of(replace(event, sequence=self.last + 1), before=self.newest_link.chain)
        with self._connection("written") as connection:
            connection.execute(events.insert(), {**row, "written": written})
        self.newest_link = Link(sequence=row["sequence"], chain=row["chain"])

    def cut(self, until: int) -> None:
        """Delete the first events, up to number `until`; raises `LogCut`."""
        link = self.link_at(until)
        with self._connection("written") as connection:
            connection.execute(log_format.update().values(cut=link.sequence, cut_chain=link.chain))
            connection.execute(events.delete().where(events.c.sequence <= until))

    def remember(self, request: AnsweredRequest) -> None:
        """Keep a write's answer under its key, and delete some expired keys.

        Raises `LogError` if the key was used within 24 hours; call `answered` first.
        """
        expired, age = requests.c.written < _day_ago(), requests.c.written
        oldest = sa.select(requests.c.key).where(expired).order_by(age).limit(FORGOTTEN_AT_ONCE)
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
        with self._connection("written") as connection:
            connection.execute(forget)
            connection.execute(keep)

    @contextmanager
    def _connection(self, action: str = "read") -> Iterator[sa.Connection]:
        with as_log_errors(self.place, action=action):
            yield self._transaction


class LabelLog(EventReader):
    """A log that several processes append to; any thread may use it. `open_log` opens one.

    `place` names the log in messages: the file, or the URL without its password. `state` is the
    argument of `open_log`, including a password. `id` is unique to this log.
    """

    def __init__(self, database: Database, *, state: Path | str, create: bool) -> None:
        """Open the log in `database`. With `create`, it is created if there is none."""
        self._database, self.place, self.state = database, database.place, state
        self._closing = threading.Event()
        self._watcher: threading.Thread | None = None
        self.known: Link | None = None
        self._wrote = False
        try:
            self.id = self._open(create)
        except BaseException:
            self.close()
            raise

    @property
    def across_machines(self) -> bool:
        """Whether processes of several machines may share the log."""
        return self._database.across_machines

    @property
    def in_place(self) -> bool:
        """Whether a restart would open the same log."""
        try:
            self._database.require_in_place()
        except LogError:
            return False
        return True

    def last_sequence(self) -> int:
        """Return the current number of the newest event, 0 for an empty log."""
        with self._connection() as reader:
            return last_link(reader, place=self.place).sequence

    def cut(self) -> int:
        """Return the number of the newest event that was cut from the beginning, 0 if none was."""
        with self._connection() as reader:
            return cut_link(reader, place=self.place).sequence

    def require(self, link: Link, *, knows: str) -> None:
        """Raise `LogReplaced` unless the log holds this event; see `require_link`."""
        with self._connection() as reader:
            require_link(reader, link, knows=knows, place=self.place)

    def verified(self, *, after: int = 0, until: int | None = None) -> Iterator[tuple[Row, Event]]:
        """Yield events with their rows. No lock is held while the caller processes one."""
        newest: Row | None = None
        try:
            for newest, event in super().verified(after=after, until=until):
                yield newest, event
        finally:
            if newest is not None:
                self._know(Link(sequence=newest.sequence, chain=newest.chain))

    @contextmanager
    def exclusive(self) -> Iterator[Appending]:
        """Hold the log's lock for one transaction, in which no other process appends.

        The transaction is committed when the block ends, and rolled back if the block raises. If
        the block ends without an error, the events are on disk. If leaving the block raises
        `LogError`, the events may or may not be in the log, because the connection can be lost
        between the commit and its confirmation. So before the caller tries again, it must read on
        from the last known event, or look up the idempotency key.

        Raises `LogLocked` if another process holds the lock for too long, `LogReplaced` if the log
        was replaced since it was opened, and `LogError` if the database cannot be written.
        """
        database = self._database
        try:
            with as_log_errors(self.place, action="written"):
                database.require_known(self.known)
                with database.exclusive() as connection:
                    appending = Appending(database, connection, known=self.known)
                    yield appending
                    database.require_in_place()  # usually finds a replaced file before the commit
                database.require_in_place()  # finds any replaced file before the answer
                if appending.appended:
                    database.require_written(appending.newest_link)
        except LogReplaced:
            self._note(at_once=True)  # so a restart notices that acknowledged events are gone
            raise
        if appending.appended:
            self._know(appending.newest_link)
            self._wrote = True
            self._note()

    def touched(self) -> bool:
        """Whether another program seems to have written to the files since the last call."""
        return self._database.touched(self.known)

    def shrink(self) -> None:
        """Free the disk space of events that were cut, if the database can do that."""
        with as_log_errors(self.place, action="written"):
            self._database.shrink()
            self._database.require_known(self.known)  # checks the rewritten file

    def watch(self, appended: Callable[[int | None], None]) -> None:
        """Call `appended` from one daemon thread whenever a process may have appended.

        Its argument is the newest event's number, or None if it is not known without a query.
        It is called at start, after every append (including this process's own), and occasionally
        without one. While the database cannot be watched, it is called ten times a second.
        """
        if self._watcher is not None:
            raise RuntimeError("the label log is watched already: it takes only one callback")
        self._watcher = threading.Thread(
            target=_watch,
            args=(self._database, appended, self._closing),
            name="log-watcher",
            daemon=True,
        )
        self._watcher.start()

    def close(self) -> None:
        """Stop watching and close all connections."""
        self._closing.set()
        if self._watcher not in (None, threading.current_thread()):
            self._watcher.join(CLOSING_SECONDS)
        if self._wrote:
            self._note(at_once=True)
        self._database.close()

    @contextmanager
    def _connection(self) -> Iterator[sa.Connection]:
        with (
            as_log_errors(self.place, action="read"),
            self._database.reading.connect() as reader,
        ):
            yield reader

    def _know(self, link: Link) -> None:
        if self.known is None or link.sequence > self.known.sequence:
            self.known = link

    def _note(self, *, at_once: bool = False) -> None:
        if self._database.note is not None and self.known is not None:
            self._database.note.write(self.id, self.known, at_once=at_once)

    def _open(self, create: bool) -> str:
        """Find or create the log's tables; return the log's id."""
        note = self._database.note
        with as_log_errors(self.place, action="opened"):
            with self._database.engine.connect() as reader:
                found = find_id(reader, place=self.place)
            if found is None and create:
                if note is not None:
                    note.require_reached(None)
                with self._database.exclusive() as connection:
                    # Another process may have created the log in the meantime.
                    found = find_id(connection, place=self.place) or _create(connection)
        if found is None:
            raise LogError(f"{self.place} holds no label log")
        if note is not None:
            note.require_reached(found, self._holds)
        return found

    def _holds(self, link: Link) -> bool:
        """Whether the log holds an event; an event that was cut counts as held."""
        try:
            with suppress(LogCut):  # the event was there, otherwise it could not have been cut
                self.require(link, knows="the note holds")
        except LogReplaced:
            return False
        return True


def _day_ago() -> float:
    return time.time() - REMEMBERED_SECONDS


def _create(connection: sa.Connection) -> str:
    """Create the tables of an empty log, under the lock; return the log's id."""
    for table in (requests, events, log_format):
        table.create(connection)
    log_id = uuid.uuid4().hex
    row = {"version": FORMAT_VERSION, "id": log_id, "cut": 0, "cut_chain": first_chain(log_id)}
    connection.execute(log_format.insert(), row)
    return log_id


def _watch(
    database: Database, appended: Callable[[int | None], None], stop: threading.Event
) -> None:
    """Call `appended` at each signal until `stop` is set; never raises.

    Errors of `appended` do not end the thread; repeated errors are logged once.
    """
    failing = False
    for newest in _signals(database, stop):
        try:
            appended(newest)
        except Exception:
            if not failing:
                log.exception("events that other processes appended could not be applied")
            failing = True
        else:
            failing = False


def _signals(database: Database, stop: threading.Event) -> Iterator[int | None]:
    """Yield at each signal of the database until `stop` is set.

    While signals cannot be received, it yields at regular intervals, so new events are still read
    if possible. The loss of signals is logged once, and so is its end.
    """
    lost, pause = False, POLL_SECONDS
    while not stop.is_set():
        try:
            with closing(database.signals(stop)) as signals:
                for newest in signals:
                    if stop.is_set():
                        return
                    if lost:
                        log.info("the label log is watched again", extra={"log": database.place})
                    lost, pause = False, POLL_SECONDS
                    yield newest
        except Exception as error:  # even if it is a bug: a replica must not fall behind silently
            if not lost:
                log.warning(
                    "the label log cannot be watched; it is polled", extra={"reason": str(error)}
                )
            lost = True
            resume = monotonic() + pause
            while monotonic() < resume and not stop.wait(POLL_SECONDS):
                yield None
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

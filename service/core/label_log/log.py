"""`LabelLog`: reading, appending to and watching one label log."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import sqlalchemy as sa

from service.core.errors import LogCut, LogError, LogReplaced
from service.core.label_log.appending import Appending
from service.core.label_log.database import Database, as_log_errors
from service.core.label_log.links import Link, cut_link, last_link, link_at, require_link
from service.core.label_log.rows import (
    Row,
    event_of,
    gapless_rows,
    linked,
    newest_of,
    page_after,
)
from service.core.label_log.schema import FORMAT_BEFORE, LogFormat, create_log, find_format
from service.core.label_log.upgrade import upgrade
from service.core.label_log.watching import watch
from service.core.types import Event

CLOSING_SECONDS = 1.0  # how long `close` waits for the watching thread, a daemon, to end


class LabelLog:
    """A log that several processes append to; any thread may use it. `open_log` opens one.

    `place` names it in messages: the file, or the URL without its password. `state` is what
    `open_log` opens, a password included. `id` tells this log from all others.
    """

    def __init__(self, database: Database, *, state: Path | str, create: bool) -> None:
        """Open the log that `database` holds; with `create` it is created if there is none."""
        self._database, self.place, self.state = database, database.place, state
        self._closing = threading.Event()
        self._watcher: threading.Thread | None = None
        self._newest: Link | None = None  # the newest event that this process has written or read
        self._wrote = False
        try:
            self.id = self._open(create).id
        except BaseException:
            self.close()
            raise

    @property
    def in_place(self) -> bool:
        """Whether a restart would open the log that is open here."""
        try:
            self._database.require_in_place()
        except LogError:
            return False
        return True

    def last_sequence(self) -> int:
        """Return the number of the newest event at this moment, 0 for an empty log."""
        with self._reader() as reader:
            return last_link(reader, place=self.place).sequence

    def cut(self) -> int:
        """Return the number of the newest event that was cut from the beginning, 0 for none."""
        with self._reader() as reader:
            return cut_link(reader, place=self.place).sequence

    def link_at(self, sequence: int) -> Link:
        """Return the link of an event, by which the log can be recognized later.

        Raises `LogCut` for an event that was cut, and `LogCorrupt` for one that is missing.
        """
        if self._newest is not None and self._newest.sequence == sequence:
            return self._newest
        with self._reader() as reader:
            return link_at(reader, sequence, place=self.place)

    def require(self, link: Link, *, knows: str) -> None:
        """Raise `LogReplaced` unless the log holds this event.

        `knows` is part of the message, for example "the bundle x holds": it names where the event
        is known from.
        """
        with self._reader() as reader:
            require_link(reader, link, knows=knows, place=self.place)

    @property
    def known(self) -> Link | None:
        """The newest event that this process has written or read."""
        return self._newest

    def newest(self, kind: str) -> Event | None:
        """Return the newest event of a kind, None if there is none."""
        with self._reader() as reader:
            row = newest_of(reader, kind)
        return None if row is None else event_of(row, place=self.place)

    def read(self, *, after: int = 0, until: int | None = None) -> Iterator[Event]:
        """Yield the events after number `after`, up to `until` if it is given, in order.

        No lock and no transaction is held while the caller works on an event. Raises `LogCorrupt`,
        which names the event, at a gap, a wrong checksum or chain, or an unknown kind, and `LogCut`
        where the first of them was cut.
        """
        return (event for _, event in self.verified(after=after, until=until))

    def verified(self, *, after: int = 0, until: int | None = None) -> Iterator[tuple[Row, Event]]:
        """Yield the same events, each with its stored row; raises as `read`."""
        newest: Row | None = None
        try:
            rows = self.rows(after=after, until=until)
            for newest, event in linked(rows, self.link_at(after), place=self.place):
                yield newest, event
        finally:
            if newest is not None:
                self._know(Link(sequence=newest.sequence, chain=newest.chain))

    @contextmanager
    def _reader(self) -> Iterator[sa.Connection]:
        """Open a connection to read; raises the database's errors as `LogError`."""
        with (
            as_log_errors(self._database, action="read"),
            self._database.engine.connect() as reader,
        ):
            yield reader

    def _know(self, link: Link) -> None:
        if self._newest is None or link.sequence > self._newest.sequence:
            self._newest = link

    def rows(self, *, after: int = 0, until: int | None = None) -> Iterator[Row]:
        """Yield the rows of the same events, unverified; raises `LogCorrupt` only at a gap."""

        def fetch(last: int) -> Sequence[Row]:
            with self._reader() as reader:
                return page_after(reader, last, until, place=self.place)

        return gapless_rows(fetch, after=after, place=self.place)

    @contextmanager
    def exclusive(self) -> Iterator[Appending]:
        """Hold the log's lock for one transaction, in which no other process appends.

        The transaction is committed when the block ends and rolled back when the block raises.
        Once the block has ended without an error, the events are on disk. If leaving the block
        raises `LogError`, the events may or may not be in the log, because the connection can be
        lost between the commit and its confirmation: read on from the last known event, or look
        up the idempotency key, before the write is tried again.

        Raises `LogLocked` if another process holds the lock for too long, `LogReplaced` if the log
        is no longer the one that was opened, and `LogError` if the database cannot be written.
        """
        database = self._database
        with self._noting_a_loss(), as_log_errors(database, action="written"):
            database.require_known(self._newest)
            with database.exclusive() as connection:
                appending = Appending(database, connection, known=self._newest)
                yield appending
                database.require_in_place()  # nothing is written, in nearly all cases
            database.require_in_place()  # nothing is acknowledged, in all cases
            if appending.appended:
                database.require_written(appending.newest)
        if appending.appended:
            self._know(appending.newest)
            self._wrote = True
            self._note()

    @contextmanager
    def _noting_a_loss(self) -> Iterator[None]:
        """Note what was acknowledged where it is gone: a restart must notice that, too."""
        try:
            yield
        except LogReplaced:
            self._note(at_once=True)
            raise

    def _note(self, *, at_once: bool = False) -> None:
        if self._database.note is not None and self._newest is not None:
            self._database.note.write(self.id, self._newest, at_once=at_once)

    def touched(self) -> bool:
        """Whether another program seems to have written to the files since this was last asked."""
        return self._database.touched(self._newest)

    def shrink(self) -> None:
        """Give the space of events that were cut back to the disk, where the database can."""
        with as_log_errors(self._database, action="written"):
            self._database.shrink()
            self._database.require_known(self._newest)  # in what was rewritten

    def watch(self, appended: Callable[[], None]) -> None:
        """Call `appended` from one daemon thread whenever some process may have appended.

        It is called at start, after every append (this process's own included), and occasionally
        without one. While the database cannot be watched, it is called ten times a second.
        """
        if self._watcher is not None:
            raise RuntimeError("the label log is watched already: it takes only one callback")
        self._watcher = threading.Thread(
            target=watch,
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

    def _open(self, create: bool) -> LogFormat:
        note = self._database.note
        with as_log_errors(self._database, action="opened"):
            with self._database.engine.connect() as reader:
                log_format = find_format(reader)
            if log_format is None and create:
                if note is not None:
                    note.require_reached(None)
                with self._database.exclusive() as connection:
                    # Another process may have created the log meanwhile.
                    log_format = find_format(connection) or create_log(connection)
            elif log_format is not None and create and log_format.version == FORMAT_BEFORE:
                with self._database.exclusive() as connection:
                    log_format = find_format(connection)
                    if log_format is not None and log_format.version == FORMAT_BEFORE:
                        log_format = upgrade(connection, place=self.place)
        if log_format is None:
            raise LogError(f"{self.place} holds no label log")
        log_format.require_readable(self.place)
        if note is not None:
            note.require_reached(log_format.id, self._holds)
        return log_format

    def _holds(self, link: Link) -> bool:
        """Whether the log holds an event, as far as it was not cut."""
        try:
            self.require(link, knows="the note holds")
        except LogReplaced:
            return False
        except LogCut:  # only a log that held it could have been cut there
            return True
        return True

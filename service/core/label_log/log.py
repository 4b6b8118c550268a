"""`LabelLog`: reading, appending to and watching one label log."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from service.core.errors import LogError, LogReplaced
from service.core.label_log.appending import Appending
from service.core.label_log.database import Database, as_log_errors
from service.core.label_log.rows import (
    Row,
    event_of,
    gapless_rows,
    last_sequence,
    newest_of,
    page_after,
)
from service.core.label_log.schema import FORMAT_VERSION, LogFormat, create_log, find_format
from service.core.label_log.watching import watch
from service.core.types import Event

CLOSING_SECONDS = 1.0  # how long `close` waits for the watching thread, a daemon, to end


class LabelLog:
    """A log that several processes append to; any thread may use it. `open_log` opens one.

    `place` names it in messages: the file, or the URL without its password. `id` tells this log
    from all others.
    """

    def __init__(self, database: Database, *, create: bool) -> None:
        """Open the log that `database` holds; with `create` it is created if there is none."""
        self._database, self.place = database, database.place
        self._closing = threading.Event()
        self._watcher: threading.Thread | None = None
        self._written = 0  # the newest event when this process last wrote
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
        except LogReplaced:
            return False
        return True

    def last_sequence(self) -> int:
        """Return the number of the newest event at this moment, 0 for an empty log."""
        with (
            as_log_errors(self._database, action="read"),
            self._database.engine.connect() as reader,
        ):
            return last_sequence(reader)

    def newest(self, kind: str) -> Event | None:
        """Return the newest event of a kind, None if there is none."""
        with (
            as_log_errors(self._database, action="read"),
            self._database.engine.connect() as reader,
        ):
            row = newest_of(reader, kind)
        return None if row is None else event_of(row, place=self.place)

    def read(self, *, after: int = 0, until: int | None = None) -> Iterator[Event]:
        """Yield the events after number `after`, up to `until` if it is given, in order.

        No lock and no transaction is held while the caller works on an event. Raises `LogCorrupt`,
        which names the event, at a gap, a wrong checksum or an unknown kind.
        """
        return (event_of(row, place=self.place) for row in self.rows(after=after, until=until))

    def rows(self, *, after: int = 0, until: int | None = None) -> Iterator[Row]:
        """Yield the same events as stored rows, unverified; raises `LogCorrupt` only at a gap."""

        def fetch(last: int) -> Sequence[Row]:
            with (
                as_log_errors(self._database, action="read"),
                self._database.engine.connect() as reader,
            ):
                return page_after(reader, last, until)

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
        with (
            as_log_errors(self._database, action="written"),
            self._database.exclusive() as connection,
        ):
            self._database.require_in_place()
            appending = Appending(self._database, connection)
            if appending.last < self._written:
                raise LogReplaced(
                    f"{self.place} ends at event {appending.last}, but this process has written"
                    f" event {self._written}: the log was cut or is an older copy"
                )
            yield appending
            self._database.require_in_place()  # nothing is written, in nearly all cases
        self._database.require_in_place()  # nothing is acknowledged, in all cases
        if self._database.note is not None and appending.last > self._written:
            self._database.note.write(self.id, appending.last)
        self._written = appending.last

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
        if self._database.note is not None and self._written:
            self._database.note.write(self.id, self._written, at_once=True)
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
        if log_format is None:
            raise LogError(f"{self.place} holds no label log")
        if not log_format.readable:
            raise LogError(
                f"{self.place} has label log format {log_format.version}, and this version of"
                f" Keymatch reads only format {FORMAT_VERSION}: use the version that wrote the log"
            )
        if note is not None:
            note.require_reached(log_format.id, self.last_sequence())
        return log_format

"""The label log: every live change in one gapless order, on disk before it is answered."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from service.core.errors import LogError
from service.core.label_log.appending import Appending
from service.core.label_log.database import Database, failures_of
from service.core.label_log.rows import Row, event_of, last_sequence, newest_of, page_after, rows
from service.core.label_log.schema import FORMAT_VERSION, Format, bring_to_current, find_format
from service.core.label_log.watching import watch
from service.core.types import Event

CLOSING_SECONDS = 1.0  # what a thread that watches may take to end; it dies with the process anyway


class LabelLog:
    """A log that several processes append to; made by `open_log`, used by any thread.

    `place` names it in messages: the file, or the URL without its password. `id` is what
    `log_format` says; it is empty for a log of format 1 that was opened for reading.
    """

    def __init__(self, database: Database, *, create: bool) -> None:
        """Open the log that `database` holds; create or migrate it only where `create` says so."""
        self._database, self.place = database, database.place
        self._closing = threading.Event()
        self._watcher: threading.Thread | None = None
        try:
            self.id = self._prepared(create).id
        except BaseException:
            self.close()
            raise

    def last_sequence(self) -> int:
        """The newest event's number as of now, 0 for an empty log."""
        with failures_of(self._database, when="read"), self._database.engine.connect() as reader:
            return last_sequence(reader)

    def newest(self, kind: str) -> Event | None:
        """The newest event of a kind."""
        with failures_of(self._database, when="read"), self._database.engine.connect() as reader:
            row = newest_of(reader, kind)
        return None if row is None else event_of(row, place=self.place)

    def read(self, *, after: int = 0, until: int | None = None) -> Iterator[Event]:
        """All events behind `after`, up to `until` where it is given, in order.

        No lock and no transaction is held while the caller works on an event. Raises `LogCorrupt`
        at a gap, a wrong checksum or an unknown kind, naming the event.
        """
        return (event_of(row, place=self.place) for row in self.rows(after=after, until=until))

    def rows(self, *, after: int = 0, until: int | None = None) -> Iterator[Row]:
        """The same as stored, for those who check the log; only gaps are noticed."""

        def fetch(last: int) -> Sequence[Row]:
            with (
                failures_of(self._database, when="read"),
                self._database.engine.connect() as reader,
            ):
                return page_after(reader, last, until)

        return rows(fetch, after=after, place=self.place)

    @contextmanager
    def exclusive(self) -> Iterator[Appending]:
        """One transaction; nobody else appends until it ends.

        It commits when the block ends and rolls back when the block raises. A commit that returned
        is on disk. A `LogError` from the block's end leaves open whether it was committed (the
        connection may have been lost between the commit and its confirmation): the log is the
        truth, so read on from the last known event, or ask for the idempotency key, before the
        write is tried again.

        Raises `LogLocked` when another process holds the lock for too long, and `LogError` when
        the database cannot be written.
        """
        with failures_of(self._database, when="written"), self._database.exclusive() as connection:
            yield Appending(self._database, connection)

    def watch(self, appended: Callable[[], None]) -> None:
        """Call `appended` from one daemon thread whenever some process may have appended.

        It is called at once, after this log's own appends as well, and for nothing now and then.
        While the database cannot be watched it is called ten times a second.
        """
        if self._watcher is not None:
            raise RuntimeError("the log is watched already")
        self._watcher = threading.Thread(
            target=watch,
            args=(self._database, appended, self._closing),
            name="log-watcher",
            daemon=True,
        )
        self._watcher.start()

    def close(self) -> None:
        """Stop watching and give up all connections."""
        self._closing.set()
        if self._watcher not in (None, threading.current_thread()):
            self._watcher.join(CLOSING_SECONDS)
        self._database.engine.dispose()

    def _prepared(self, create: bool) -> Format:
        with failures_of(self._database, when="opened"):
            with self._database.engine.connect() as reader:
                found = find_format(reader)
            if create and not (found and found.current):
                with self._database.exclusive() as connection:  # another process may do the same
                    found = bring_to_current(connection, find_format(connection))
        if found is None:
            raise LogError(f"{self.place} holds no label log")
        if not found.readable:
            raise LogError(
                f"{self.place} has log format {found.version};"
                f" this build reads 1 to {FORMAT_VERSION}"
            )
        return found

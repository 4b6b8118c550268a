"""The log in a folder: a SQLite file that the processes of one machine share.

In WAL mode readers and the process that appends do not wait for each other; with synchronous=FULL
a commit that has returned is on disk. On which: SQLite goes on writing to files that were removed
or replaced, so the identity of its files is compared around each commit (`FileIdentity`), and goes
on with pages in memory where another program has written to the file, so it is read anew then
(`FileContents`).
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import sqlalchemy as sa

from service.core.errors import LogError
from service.core.label_log.database import as_log_errors
from service.core.label_log.file_contents import FileContents
from service.core.label_log.file_identity import FileIdentity
from service.core.label_log.links import Link
from service.core.label_log.main_file import CHECKPOINT_PAGES
from service.core.label_log.newest_note import NewestNote

FILE_NAME = "labels.sqlite"
LOCK_SECONDS = 5.0
POLL_SECONDS = 0.02  # between two reads of the file's commit counter, each of some microseconds
# SQLite retries a busy lock after 1, 2, 5, ... 100 ms, and the process that has just appended can
# take the lock again in between: one of four busy processes waited for 2.7 s. Ending SQLite's own
# wait after so many milliseconds and starting it again keeps the retries close together.
_TURN_MS = 10
_RETRY_SECONDS = 0.001

_NO_BEGIN = (
    "keymatch_no_begin"  # execution option: the caller, not the listener below, begins transactions
)


class SqliteDatabase:
    """`labels.sqlite` in a state folder."""

    def __init__(self, folder: Path, *, create: bool) -> None:
        """Open the file for appending, and create it if missing; without `create` only for reading.

        Raises `LogError` if the folder or the file cannot be used.
        """
        path = folder.absolute() / FILE_NAME
        self.place = str(folder / FILE_NAME)
        try:
            if create:
                folder.mkdir(parents=True, exist_ok=True)
            elif not path.is_file():
                raise LogError(f"{folder} holds no label log: there is no {FILE_NAME}")
        except OSError as error:
            raise LogError(f"state folder {folder} cannot be used: {error.strerror}") from error
        self.engine = _engine(path, mode="rwc" if create else "ro")
        self._identity: FileIdentity | None = None  # of a log that is only read
        self._contents: FileContents | None = None
        self.note = NewestNote(path.parent, place=self.place) if create else None
        self._bare = self.engine.execution_options(**{_NO_BEGIN: True})
        if create:
            try:
                with as_log_errors(self, action="opened"):
                    self._use_wal()
                # SQLite would silently open it for reading, and only the first append would fail.
                if not (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)):
                    raise LogError(
                        f"{self.place} cannot be written: no permission on the file or its folder"
                    )
                self._identity = FileIdentity(path, place=self.place)
                reading = _engine(path, mode="ro", pooled=False)
                self._contents = FileContents(self, path, reading, self._identity)
            except BaseException:
                self.close()
                raise

    @contextmanager
    def exclusive(self) -> Iterator[sa.Connection]:
        """Open a transaction that takes the file's only write lock before anything is read."""
        with self._bare.begin() as connection:
            driver = connection.connection.driver_connection
            assert isinstance(driver, sqlite3.Connection)
            driver.execute(f"PRAGMA busy_timeout={_TURN_MS}")
            try:
                self._execute_when_free(connection, "BEGIN IMMEDIATE")
            finally:
                driver.execute(f"PRAGMA busy_timeout={_busy_ms()}")
            yield connection

    def notify(self, connection: sa.Connection) -> None:
        """Do nothing: watching processes read the counter of commits that SQLite keeps."""

    def signals(self, stop: threading.Event) -> Generator[None, None, None]:
        """Yield at once, and then whenever another connection has committed.

        Raises `LogError` when the file cannot be read.
        """
        with as_log_errors(self, action="watched"), self._bare.connect() as connection:
            # The driver's own connection and a plain sleep: fifty times a second, the detour by
            # SQLAlchemy and the waiting for an event took three times the processor time.
            driver = connection.connection.driver_connection
            assert isinstance(driver, sqlite3.Connection)
            seen: int | None = None
            while not stop.is_set():
                try:
                    [version] = driver.execute("PRAGMA data_version").fetchone()
                except sqlite3.Error as error:
                    raise LogError(f"{self.place} cannot be watched: {error}") from error
                if version != seen:
                    seen = version
                    yield
                sleep(POLL_SECONDS)

    def shrink(self) -> None:
        """Rewrite the file without its free pages, in place; other processes wait meanwhile."""
        with self._bare.connect() as connection:
            self._execute_when_free(connection, "VACUUM")
            connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")

    def require_in_place(self) -> None:
        """Raise `LogReplaced` where a file was removed or replaced, or has lost events."""
        if self._identity is not None and self._contents is not None:
            self._identity.require_same()
            self._contents.require_found_again()

    def require_known(self, known: Link | None) -> None:
        """Raise `LogReplaced` where the file was written to and no longer holds this event."""
        if self._contents is not None and self._contents.require(known):
            self.engine.dispose()  # its connections would write on with pages of before

    def require_written(self, newest: Link) -> None:
        """Raise `LogReplaced` unless a connection that wrote nothing reads this event."""
        assert self._identity is not None and self._contents is not None
        self._contents.require(newest, anew=not self._identity.reads_back(newest))

    def touched(self, known: Link | None) -> bool:
        """Whether another program seems to have written to the file since this was last asked."""
        return self._contents is not None and self._contents.touched(known)

    def close(self) -> None:
        """Close all connections; what may be of others is left as it is."""
        lost = self._contents is not None and self._contents.lost
        if self._identity is not None:
            self._identity.close(tidy=not lost)
        if self._contents is not None:
            self._contents.close()
        if self.note is not None:
            self.note.close()
        self.engine.dispose()

    def lock_timed_out(self, error: sa.exc.DBAPIError) -> bool:
        """Return whether the error is SQLITE_BUSY ("database is locked"), after `LOCK_SECONDS`."""
        code = getattr(error.orig, "sqlite_errorcode", 0)
        return code & 0xFF == sqlite3.SQLITE_BUSY  # the bits above say why it was busy

    def _use_wal(self) -> None:
        """Turn on WAL mode, which is a lasting property of the file."""
        with self._bare.connect() as connection:
            # Subtle: if two processes turn it on at once, SQLite refuses one of them immediately,
            # whatever busy_timeout says.
            mode = self._execute_when_free(connection, "PRAGMA journal_mode=WAL").scalar()
        if mode != "wal":
            raise LogError(f"{self.place} cannot be opened: its disk does not support WAL mode")

    def _execute_when_free(self, connection: sa.Connection, statement: str) -> sa.CursorResult[Any]:
        """Execute a statement, and retry while another process holds the lock."""
        deadline = monotonic() + LOCK_SECONDS
        while True:
            try:
                return connection.exec_driver_sql(statement)
            except sa.exc.OperationalError as error:
                if not self.lock_timed_out(error) or monotonic() > deadline:
                    raise
                sleep(_RETRY_SECONDS)


def _engine(path: Path, *, mode: str, pooled: bool = True) -> sa.Engine:
    # As a URI with percent encoding, so that ? and # in a folder's name are not read as options.
    url = sa.URL.create("sqlite", database=path.as_uri(), query={"mode": mode, "uri": "true"})
    # Values are users' texts and must not appear in errors.
    pool = sa.pool.QueuePool if pooled else sa.pool.NullPool
    engine = sa.create_engine(url, hide_parameters=True, poolclass=pool)

    @sa.event.listens_for(engine, "connect")
    def configure(connection: Any, _record: Any) -> None:
        connection.isolation_level = None  # the listener below begins transactions, not the driver
        for pragma in (
            f"busy_timeout={_busy_ms()}",
            "synchronous=FULL",
            f"wal_autocheckpoint={CHECKPOINT_PAGES}",
        ):
            connection.execute(f"PRAGMA {pragma}")

    @sa.event.listens_for(engine, "begin")
    def begin(connection: sa.Connection) -> None:
        if not connection.get_execution_options().get(_NO_BEGIN):
            connection.exec_driver_sql("BEGIN")

    return engine


def _busy_ms() -> int:
    return round(LOCK_SECONDS * 1000)

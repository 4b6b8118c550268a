"""The log in a folder: a SQLite file that the processes of one machine share.

In WAL mode, readers and the process that appends do not wait for each other. With synchronous=FULL,
a commit is on disk when it returns. SQLite keeps writing to files that were removed or replaced. It
also keeps using pages in memory if another program has written to the file. So `SqliteFiles` checks
the files around each commit.
"""

from __future__ import annotations

import atexit
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
from service.core.label_log.database import Database, as_log_errors, lock_timed_out
from service.core.label_log.newest_note import NewestNote
from service.core.label_log.rows import Link
from service.core.label_log.sqlite_files import CHECKPOINT_PAGES, SqliteFiles

FILE_NAME = "labels.sqlite"
LOCK_SECONDS = 5.0
POLL_SECONDS = 0.02  # between two reads of the commit counter, which take microseconds
# SQLite retries a busy lock after 1, 2, 5, ... 100 ms. Between retries, the process that has just
# appended can take the lock again: one of four busy processes waited for 2.7 s. So SQLite's own
# wait ends after this many milliseconds and starts again, which keeps the retries close together.
_TURN_MS = 10
_RETRY_SECONDS = 0.001

# Execution option: the caller begins the transaction, not the listener below.
_NO_BEGIN = "keymatch_no_begin"

_left_open: list[SqliteFiles] = []  # never closed before the process ends


class SqliteDatabase(Database):
    """`labels.sqlite` in a state folder."""

    def __init__(self, folder: Path, *, create: bool) -> None:
        """Open the file for reading, and for appending with `create`; raises `LogError`."""
        path = folder.absolute() / FILE_NAME
        self.place = str(folder / FILE_NAME)
        try:
            if create:
                folder.mkdir(parents=True, exist_ok=True)
            elif not path.is_file():
                raise LogError(f"{folder} holds no label log: there is no {FILE_NAME}")
        except OSError as error:
            raise LogError(f"state folder {folder} cannot be used: {error.strerror}") from error
        self.engine = self.reading = _engine(path, mode="rwc" if create else "ro")
        self._files: SqliteFiles | None = None  # None if the log is only read
        self.note = NewestNote(path.parent, place=self.place) if create else None
        self._bare = self.engine.execution_options(**{_NO_BEGIN: True})
        if create:
            try:
                with as_log_errors(self.place, action="opened"):
                    self._use_wal()
                # SQLite would silently open it read-only, and the first append would fail.
                if not (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)):
                    raise LogError(
                        f"{self.place} cannot be written: no permission on the file or its folder"
                    )
                reading = _engine(path, mode="ro", pooled=False)
                self._files = SqliteFiles(path, place=self.place, engine=reading)
                # At its exit, the interpreter would close connections in any order.
                atexit.register(self.close)
            except BaseException:
                self.close()
                raise

    @contextmanager
    def exclusive(self) -> Iterator[sa.Connection]:
        """Open a transaction that takes the file's only write lock before it reads anything."""
        with self._bare.begin() as connection:
            driver = connection.connection.driver_connection
            assert isinstance(driver, sqlite3.Connection)
            driver.execute(f"PRAGMA busy_timeout={_TURN_MS}")
            try:
                self._execute_when_free(connection, "BEGIN IMMEDIATE")
            finally:
                driver.execute(f"PRAGMA busy_timeout={_busy_ms()}")
            yield connection

    def signals(self, stop: threading.Event) -> Generator[int | None, None, None]:
        """Yield at once, and then whenever SQLite's counter of commits has changed."""
        with as_log_errors(self.place, action="watched"), self._bare.connect() as connection:
            # Uses the driver's connection and a plain sleep. At fifty calls per second, SQLAlchemy
            # and waiting for an event took three times the CPU time.
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
                    yield None
                sleep(POLL_SECONDS)

    def shrink(self) -> None:
        """Rewrite the file in place without its free pages; other processes wait meanwhile."""
        with self._bare.connect() as connection:
            self._execute_when_free(connection, "VACUUM")
            connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")

    def require_in_place(self) -> None:
        """Raise `LogReplaced` if a file was removed or replaced, or if events are missing."""
        if self._files is not None:
            self._files.require_in_place()

    def require_known(self, known: Link | None) -> None:
        """Raise `LogReplaced` if the file has changed and no longer holds the event `known`."""
        if self._files is not None and self._files.require(known):
            self.engine.dispose()  # its connections would keep writing with old pages

    def require_written(self, newest: Link) -> None:
        """Raise `LogReplaced` unless a connection that wrote nothing reads the event `newest`."""
        assert self._files is not None
        self._files.require_written(newest)

    def touched(self, known: Link | None) -> bool:
        """Whether another program seems to have written to the file since the last call."""
        return self._files is not None and self._files.touched(known)

    def close(self) -> None:
        """Close all connections, without touching files that may belong to other processes.

        When the last connection that may write is closed, it copies the WAL into the database and
        removes it, even if another process has written to this WAL and does not use the same files.
        In that case, a read-only connection is closed last.
        """
        atexit.unregister(self.close)
        if self.note is not None:
            self.note.close()
        if self._files is None:
            self.engine.dispose()
        elif self._files.others_may_write():
            self.engine.dispose()
            _left_open.append(self._files)  # a thread may still use it
        else:
            self._files.close()
            self.engine.dispose()

    def _use_wal(self) -> None:
        """Turn on WAL mode. The file keeps this mode."""
        with self._bare.connect() as connection:
            # Subtle: if two processes turn it on at once, SQLite refuses one of them immediately,
            # regardless of busy_timeout.
            mode = self._execute_when_free(connection, "PRAGMA journal_mode=WAL").scalar()
        if mode != "wal":
            raise LogError(f"{self.place} cannot be opened: its disk does not support WAL mode")

    def _execute_when_free(self, connection: sa.Connection, statement: str) -> sa.CursorResult[Any]:
        """Execute a statement; retry while another process holds the lock."""
        deadline = monotonic() + LOCK_SECONDS
        while True:
            try:
                return connection.exec_driver_sql(statement)
            except sa.exc.OperationalError as error:
                if not lock_timed_out(error) or monotonic() > deadline:
                    raise
                sleep(_RETRY_SECONDS)


def _engine(path: Path, *, mode: str, pooled: bool = True) -> sa.Engine:
    # A URI with percent encoding: ? and # in a folder's name are not read as options.
    url = sa.URL.create("sqlite", database=path.as_uri(), query={"mode": mode, "uri": "true"})
    # Values are users' texts: they must not appear in errors.
    pool = sa.pool.QueuePool if pooled else sa.pool.NullPool
    engine = sa.create_engine(url, hide_parameters=True, poolclass=pool)

    @sa.event.listens_for(engine, "connect")
    def configure(connection: Any, _record: Any) -> None:
        connection.isolation_level = None  # the listener below begins transactions
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

"""The log in a folder: a SQLite file that the processes of one machine share.

WAL mode with synchronous=FULL: readers and the one that appends do not wait for each other, and a
commit that returned is on the disk.
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
from service.core.label_log.database import failures_of

FILE_NAME = "labels.sqlite"
LOCK_SECONDS = 5.0
POLL_SECONDS = 0.02  # between two looks at the file's counter of commits, which cost microseconds
# While a process waits for its turn, SQLite looks again after 1, 2, 5, ... 100 ms, and whoever has
# just appended takes the lock once more in between: of four busy processes one waited 2.7 s.
# Starting over after so many milliseconds keeps the looks close together.
_TURN_MS = 10
_RETRY_SECONDS = 0.001

_NO_BEGIN = "keymatch_no_begin"  # the execution option of a connection that begins by itself


class SqliteDatabase:
    """`labels.sqlite` in a state folder."""

    def __init__(self, folder: Path, *, create: bool) -> None:
        """Find the file, or with `create` make it; without `create` it is opened for reading.

        Raises `LogError` when the folder or the file cannot be used.
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
        self._bare = self.engine.execution_options(**{_NO_BEGIN: True})
        if create:
            try:
                with failures_of(self, when="opened"):
                    self._use_wal()
                # SQLite would open it for reading instead, and only the first append would fail.
                if not (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)):
                    raise LogError(f"{self.place} cannot be written: no permission")
            except BaseException:
                self.engine.dispose()
                raise

    @contextmanager
    def exclusive(self) -> Iterator[sa.Connection]:
        """A transaction that takes the file's only write lock before anything is read."""
        with self._bare.begin() as connection:
            driver = connection.connection.driver_connection
            assert isinstance(driver, sqlite3.Connection)
            driver.execute(f"PRAGMA busy_timeout={_TURN_MS}")
            try:
                self._insist(connection, "BEGIN IMMEDIATE")
            finally:
                driver.execute(f"PRAGMA busy_timeout={_busy_ms()}")
            yield connection

    def announce(self, connection: sa.Connection) -> None:
        """Nothing to do: SQLite counts commits, and others look at the counter."""

    def signals(self, stop: threading.Event) -> Generator[None, None, None]:
        """Yield when another connection has committed.

        Raises `LogError` when the file cannot be read.
        """
        with failures_of(self, when="watched"), self._bare.connect() as connection:
            seen: int | None = None
            while True:
                version = connection.exec_driver_sql("PRAGMA data_version").scalar()
                if version != seen:
                    seen = version
                    yield
                if stop.wait(POLL_SECONDS):
                    return

    def waited_in_vain(self, error: sa.exc.DBAPIError) -> bool:
        """Whether it is SQLITE_BUSY, "database is locked", after `LOCK_SECONDS`."""
        code = getattr(error.orig, "sqlite_errorcode", 0)
        return code & 0xFF == sqlite3.SQLITE_BUSY  # the bits above say why it was busy

    def _use_wal(self) -> None:
        """Turn on WAL mode, which stays with the file."""
        with self._bare.connect() as connection:
            # subtle: two processes that turn it on at once do not wait for each other; SQLite
            # refuses one of them without regard to busy_timeout.
            mode = self._insist(connection, "PRAGMA journal_mode=WAL").scalar()
        if mode != "wal":
            raise LogError(f"{self.place} cannot be opened: its disk offers no shared memory (WAL)")

    def _insist(self, connection: sa.Connection, statement: str) -> sa.CursorResult[Any]:
        """Execute a statement, again and again while another process is in its way."""
        deadline = monotonic() + LOCK_SECONDS
        while True:
            try:
                return connection.exec_driver_sql(statement)
            except sa.exc.OperationalError as error:
                if not self.waited_in_vain(error) or monotonic() > deadline:
                    raise
                sleep(_RETRY_SECONDS)


def _engine(path: Path, *, mode: str) -> sa.Engine:
    # As a URI, whose percent signs keep ? and # in a folder's name from being read as its options.
    url = sa.URL.create("sqlite", database=path.as_uri(), query={"mode": mode, "uri": "true"})
    # Parameters are people's texts, and stay out of errors.
    engine = sa.create_engine(url, hide_parameters=True)

    @sa.event.listens_for(engine, "connect")
    def configure(connection: Any, _record: Any) -> None:
        connection.isolation_level = None  # the listener below, not the driver, begins transactions
        for pragma in (f"busy_timeout={_busy_ms()}", "synchronous=FULL"):
            connection.execute(f"PRAGMA {pragma}")

    @sa.event.listens_for(engine, "begin")
    def begin(connection: sa.Connection) -> None:
        if not connection.get_execution_options().get(_NO_BEGIN):
            connection.exec_driver_sql("BEGIN")

    return engine


def _busy_ms() -> int:
    return round(LOCK_SECONDS * 1000)

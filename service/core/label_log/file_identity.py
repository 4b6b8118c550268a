"""Whether the files of a SQLite log are still the ones that were opened.

A process keeps writing to an open file that was removed or replaced, and every commit succeeds; but
a restart opens the path, and finds none of it. The same is true of the WAL beside the database. The
third file, `-shm`, holds the locks by which processes take turns and the place where the WAL ends:
two processes that have different ones write over each other's events.
"""

from __future__ import annotations

import ctypes
import os
import sqlite3
from pathlib import Path

from service.core.errors import LogError, LogReplaced
from service.core.label_log.links import Link

_CHAIN = "SELECT chain FROM events WHERE sequence = ?"


class FileIdentity:
    """Device and inode of database, WAL and `-shm`, as they were when they were opened."""

    def __init__(self, path: Path, *, place: str) -> None:
        """Remember the files of the database at `path`; raises `LogError` if they cannot be read.

        A connection is kept open, since SQLite removes WAL and `-shm` when the last one is closed.
        """
        self._place = place
        self._paths = (str(path), f"{path}-wal", f"{path}-shm")
        self._open: sqlite3.Connection | None = None
        try:
            self._open = sqlite3.connect(
                f"{path.as_uri()}?mode=rw", uri=True, check_same_thread=False
            )
            # Reading opens the WAL. The transaction ends with the statement, so that the WAL can be
            # brought into the database.
            self._open.execute("SELECT count(*) FROM sqlite_master").fetchall()
            files = self._identify()
            if None in files:
                raise OSError("its files were removed meanwhile")
            self._files = files
            # Subtle: the interpreter's own end closes what nothing refers to, without asking
            # whether others write; this reference keeps the connection open until `close`.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._open))
        except (sqlite3.Error, OSError) as error:
            if self._open is not None:
                self._open.close()
            raise LogError(f"{place} cannot be opened: {error}") from error

    def require_same(self) -> None:
        """Raise `LogReplaced` unless all files are those that were opened; some microseconds."""
        files = self._identify()
        if files[:2] != self._files[:2]:
            raise LogReplaced(
                f"{self._place} was removed or replaced while it was open: put its files back, or"
                " restart with a copy; writes are refused"
            )
        if files != self._files:
            raise LogReplaced(
                f"{self._place}-shm was removed or replaced while it was open, so processes can no"
                " longer take turns: restart each one that has the log open; writes are refused"
            )

    def reads_back(self, event: Link) -> bool:
        """Whether the connection kept open reads the event; a tenth of the time SQLAlchemy takes.

        Where the file cannot be read, the answer is False.
        """
        if self._open is None:
            return False
        try:
            # All rows, so that the transaction ends with the statement.
            rows = self._open.execute(_CHAIN, (event.sequence,)).fetchall()
        except sqlite3.Error:
            return False
        return rows == [(event.chain,)]

    def close(self, *, tidy: bool = True) -> None:
        """Let the files go, as they are unless `tidy`.

        Where the last connection is closed, SQLite brings what it takes for the WAL into the
        database and removes the WAL: one that another process has written to meanwhile, too, unless
        both have the same files. So where they may not, the connection is kept open until the
        process has ended.
        """
        if self._open is None:
            return
        if tidy and not self._others_may_write():
            self._open.close()
            ctypes.pythonapi.Py_DecRef(ctypes.py_object(self._open))
        self._open = None

    def _others_may_write(self) -> bool:
        """Whether another process may have opened files in the place of these ones."""
        (*files, locks), (*opened, opened_locks) = self._identify(), self._files
        pairs = zip(files, opened, strict=True)
        return locks != opened_locks or any(file not in (None, before) for file, before in pairs)

    def _identify(self) -> list[tuple[int, int] | None]:
        """Device and inode of each file; None for one that is not there or cannot be reached."""
        return [_device_and_inode(path) for path in self._paths]


def _device_and_inode(path: str) -> tuple[int, int] | None:
    try:
        file = os.stat(path)
    except OSError:
        return None
    return file.st_dev, file.st_ino

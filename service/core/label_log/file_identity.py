"""Whether the files of a SQLite log are still the ones that were opened.

A process keeps writing to an open file that was removed or replaced, and every commit succeeds; but
a restart opens the path, and finds none of it. The same is true of the WAL beside the database.
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from service.core.errors import LogError, LogReplaced

_CHAIN = "SELECT chain FROM events WHERE sequence = ?"


class FileIdentity:
    """Device and inode of database and WAL, as they were when they were opened."""

    def __init__(self, path: Path, *, place: str) -> None:
        """Remember the files of the database at `path`; raises `LogError` if they cannot be read.

        A connection is kept open, since SQLite removes the WAL when the last one is closed.
        """
        self._place = place
        self._paths = (str(path), f"{path}-wal")
        self._open: sqlite3.Connection | None = None
        try:
            self._open = sqlite3.connect(
                f"{path.as_uri()}?mode=rw", uri=True, check_same_thread=False
            )
            # Reading opens the WAL. The transaction ends with the statement, so that the WAL can be
            # brought into the database.
            self._open.execute("SELECT count(*) FROM sqlite_master").fetchall()
            self._files = self._identify()
        except (sqlite3.Error, OSError) as error:
            self.close()
            raise LogError(f"{place} cannot be opened: {error}") from error

    def require_same(self) -> None:
        """Raise `LogReplaced` unless both files are those that were opened; some microseconds."""
        try:
            same = self._identify() == self._files
        except OSError:
            same = False
        if not same:
            raise LogReplaced(
                f"{self._place} was removed or replaced while it was open: put its files back, or"
                " restart with a copy; writes are refused"
            )

    def reads_back(self, sequence: int, chain: bytes) -> bool:
        """Whether the connection kept open reads the event; a tenth of the time SQLAlchemy takes.

        Where the file cannot be read, the answer is False.
        """
        if self._open is None:
            return False
        try:
            # All rows, so that the transaction ends with the statement.
            rows = self._open.execute(_CHAIN, (sequence,)).fetchall()
        except sqlite3.Error:
            return False
        return rows == [(chain,)]

    def close(self) -> None:
        """Let the files go."""
        if self._open is not None:
            self._open.close()
            self._open = None

    def _identify(self) -> list[tuple[int, int]]:
        files = [os.stat(path) for path in self._paths]
        return [(file.st_dev, file.st_ino) for file in files]

"""When the main file of a SQLite log was last written, and whether SQLite did it.

In WAL mode a commit is written to the WAL. SQLite writes to the main file only at a checkpoint,
when the WAL holds `CHECKPOINT_PAGES` pages; after a complete one the next commit begins the WAL
anew, with another header. So a main file that has changed without either was written by another
program, such as `cp` with an older copy. Nothing else tells, since open connections go on with the
pages that they have in memory.

The WAL's format is documented at https://www.sqlite.org/fileformat2.html#walformat.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import NamedTuple

from service.core.errors import LogError, LogReplaced

CHECKPOINT_PAGES = 1000  # SQLite's default
# A file that is written twice within one tick of the system's clock has the same time; a tick is
# 10 ms at most.
TICK_NS = 20_000_000
_HEADER_BYTES, _FRAME_HEADER_BYTES = 32, 24
_PAGE_SIZE, _SALTS, _FRAME_SALTS = slice(8, 12), slice(16, 24), slice(8, 16)


class Look(NamedTuple):
    """What a look at the main file saw: bytes, times of writing and of any change, in ns.

    `wal` is the header of the WAL. A tuple, since two are made for each commit.
    """

    size: int
    written: int
    changed: int
    wal: bytes

    def same_file(self, other: Look) -> bool:
        """Whether nothing has written to the main file between two looks, as far as times tell."""
        return self[:3] == other[:3]

    @property
    def settled(self) -> bool:
        """Whether a later change would change the file's times, too."""
        return abs(time.time_ns() - self.changed) > TICK_NS


class MainFile:
    """Looks at the main file of an open database in WAL mode; any thread may use it."""

    def __init__(self, path: Path, *, place: str) -> None:
        """Raise `LogError` where there is no WAL; `place` names the log in messages."""
        self._path, self._place = str(path), place
        self._wal: int | None = None
        try:
            # Not the main file, nor `-shm`: closing one of these gives up all of SQLite's locks.
            self._wal = os.open(f"{path}-wal", os.O_RDONLY)
        except OSError as error:
            raise LogError(f"{place} cannot be opened: {error.strerror}") from error

    def look(self) -> Look:
        """Look at the file, in some microseconds; raises `LogReplaced` where it is not there."""
        try:
            file = os.stat(self._path)
        except OSError as error:
            raise LogReplaced(
                f"{self._place} was removed while it was open: {error.strerror}; put it back"
            ) from error
        return Look(
            size=file.st_size,
            written=file.st_mtime_ns,
            changed=file.st_ctime_ns,
            wal=self._read_wal(_HEADER_BYTES, at=0),
        )

    @staticmethod
    def wal_begun_anew(before: Look, now: Look) -> bool:
        """Whether there was a complete checkpoint, and a commit after it, between two looks."""
        return before.wal != now.wal

    def wal_is_long(self, now: Look) -> bool:
        """Whether the WAL has as many pages as begin a checkpoint, at each commit."""
        page_size = int.from_bytes(now.wal[_PAGE_SIZE], "big")
        last = _HEADER_BYTES + (CHECKPOINT_PAGES - 1) * (_FRAME_HEADER_BYTES + page_size)
        frame = self._read_wal(_FRAME_HEADER_BYTES, at=last)
        # The salts tell pages of this WAL from what is left of the one before it.
        return bool(frame) and frame[_FRAME_SALTS] == now.wal[_SALTS]

    def close(self) -> None:
        """Let the files go."""
        if self._wal is not None:
            os.close(self._wal)
            self._wal = None

    def _read_wal(self, size: int, *, at: int) -> bytes:
        return b"" if self._wal is None else os.pread(self._wal, size, at)

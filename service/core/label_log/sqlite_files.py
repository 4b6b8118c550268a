"""Checks that a SQLite log on disk is still the one that this process writes to.

If an open file is removed or replaced, a process keeps writing to it, and every commit succeeds.
But a restart opens the path and finds none of these events. The same holds for the WAL next to the
database. The third file, `-shm`, holds the locks by which processes take turns, and the place where
the WAL ends. Two processes with different `-shm` files overwrite each other's events. So device and
inode of all three files are compared with those that were opened.

If a copy is written over the open file, the inode stays the same, and commits still succeed: the
connections have their pages in memory. So whenever the file has changed, a new connection, which
sees what a restart would see, reads the newest known event and all numbers since the last check.
Usually the change is a checkpoint. If not, the caller should read all events (`touched`).

SQLite writes to the main file only at a checkpoint, when the WAL holds `CHECKPOINT_PAGES` pages.
After a complete checkpoint, the next commit begins the WAL again, with another header. If the main
file changes in any other way, another program has written it, such as `cp` with an older copy.
Sizes and times do not tell these cases apart, and asking SQLite would cause a checkpoint. The WAL's
format is documented at https://www.sqlite.org/fileformat2.html#walformat.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import sqlalchemy as sa

from service.core.errors import LogCorrupt, LogError, LogReplaced
from service.core.label_log.database import as_log_errors, means_damage, sqlite_code
from service.core.label_log.rows import Link, cut_link, last_link, require_link
from service.core.label_log.schema import events

_CHAIN = "SELECT chain FROM events WHERE sequence = ?"
CHECKPOINT_PAGES = 1000  # SQLite's default
# If a file is written twice within one tick of the system's clock, both times are equal. A tick is
# at most 10 ms.
TICK_NS = 20_000_000
# Sizes in the WAL; each page has one frame.
_HEADER_BYTES, _FRAME_HEADER_BYTES = 32, 24
_PAGE_SIZE, _SALTS, _FRAME_SALTS = slice(8, 12), slice(16, 24), slice(8, 16)
# This many earlier events are checked, too: no later commit has written to their pages.
EARLIER_EVENTS = 64
_KNOWS = "this process has written or read"
_count = (
    sa.select(sa.func.count())
    .select_from(events)
    .where(events.c.sequence > sa.bindparam("after"), events.c.sequence <= sa.bindparam("until"))
)


class Look(NamedTuple):
    """The state of the main file: its bytes, and the times of its last write and change in ns.

    `wal` is the header of the WAL. `sequence` is the newest event that was known then, 0 for none.
    A tuple, because two are made for each commit and tuples are cheap.
    """

    size: int
    written: int
    changed: int
    wal: bytes
    sequence: int

    def same_file(self, other: Look) -> bool:
        """Whether the main file was not written to between two looks, judging by its times."""
        return self[:3] == other[:3]

    @property
    def settled(self) -> bool:
        """Whether a later change would also change the file's times."""
        return abs(time.time_ns() - self.changed) > TICK_NS


class SqliteFiles:
    """The database, WAL and `-shm` files that were opened. Any thread may use this object."""

    def __init__(self, path: Path, *, place: str, engine: sa.Engine) -> None:
        """Remember the files of the database at `path`; raises `LogError` if they cannot be read.

        `engine` opens a new read-only connection each time. Another connection is kept open,
        because SQLite removes WAL and `-shm` when the last one is closed.
        """
        self._place, self._engine = place, engine
        self._paths = (str(path), f"{path}-wal", f"{path}-shm")
        self._open: sqlite3.Connection | None = None
        self._wal: int | None = None
        self._lock = threading.RLock()
        try:
            # Read-only: if this is the last connection, closing it leaves the files alone.
            self._open = sqlite3.connect(
                f"{path.as_uri()}?mode=ro", uri=True, check_same_thread=False
            )
            # Reading opens the WAL. The transaction must end with the statement, or checkpoints
            # could not finish.
            self._open.execute("SELECT count(*) FROM sqlite_master").fetchall()
            # Only the WAL: closing the main file or `-shm` would release all of SQLite's locks.
            self._wal = os.open(self._paths[1], os.O_RDONLY)
            self._files = self._identify()
            if None in self._files:
                raise OSError("its files were removed meanwhile")
            self._seen = self._asked = self.look(None)
        except (sqlite3.Error, OSError, LogReplaced) as error:
            self.close()
            raise LogError(f"{place} cannot be opened: {error}") from error
        self._settled, self._touched = self._seen.settled, False
        self._found: Link | None = None  # the newest known event when the file was last read
        self._lost: Link | None = None  # the newest known event when events were missing

    def require_in_place(self) -> None:
        """Raise `LogReplaced` if a file was removed or replaced, or if events are still missing."""
        self._require_same()
        if self._lost is None:  # checked without the lock, whose holder may wait for the disk
            return
        with self._lock:
            if self._settled and self._seen.same_file(self.look(None)):
                raise self._overwritten("events are missing")
            self.require(self._lost)

    def require(self, known: Link | None, *, anew: bool = False) -> bool:
        """Read the file again if it has changed, or with `anew`; return whether it was read.

        Raises `LogReplaced` if the event `known` or an earlier one is missing, and `LogError` if
        the file cannot be read.
        """
        with self._lock:
            now = self.look(known)
            changed = not self._seen.same_file(now)
            # Two changes in the same tick of the clock have the same time.
            unsettled = now.settled and not self._settled
            read = changed or anew or self._lost is not None or unsettled
            if read:
                self._require_same()  # a missing file must raise its own error first
                self._settled = now.settled
                self._require_found(known, now)
            self._seen = now
            return read

    def require_written(self, newest: Link) -> None:
        """Raise `LogReplaced` unless a connection that wrote nothing reads the event `newest`."""
        rows = None  # read by the open connection, in a tenth of SQLAlchemy's time
        with suppress(sqlite3.Error):
            if self._open is not None:
                # Fetch all rows, so that the transaction ends with the statement.
                rows = self._open.execute(_CHAIN, (newest.sequence,)).fetchall()
        self.require(newest, anew=rows != [(newest.chain,)])

    def touched(self, known: Link | None) -> bool:
        """Whether another program seems to have written to the file since the last call."""
        with self._lock:
            touched, self._touched = self._touched, False
            with suppress(LogReplaced):  # nobody writes to a file that is gone
                now = self.look(known)
                touched = self._written_by_others(self._asked, now) or touched
                self._asked = now
            return touched

    def others_may_write(self) -> bool:
        """Whether events are missing, or another process may have opened replaced files."""
        (*files, locks), (*opened, opened_locks) = self._identify(), self._files
        pairs = zip(files, opened, strict=True)
        replaced = any(file not in (None, before) for file, before in pairs)
        return self._lost is not None or locks != opened_locks or replaced

    def close(self) -> None:
        """Release the files without changing them."""
        if self._wal is not None:
            os.close(self._wal)
            self._wal = None
        if self._open is not None:
            self._open.close()
            self._open = None

    def look(self, known: Link | None) -> Look:
        """Look at the main file, in a few microseconds; raises `LogReplaced` if it is gone."""
        try:
            file = os.stat(self._paths[0])
        except OSError as error:
            raise LogReplaced(
                f"{self._place} was removed while it was open: {error.strerror}; put it back"
            ) from error
        return Look(
            size=file.st_size,
            written=file.st_mtime_ns,
            changed=file.st_ctime_ns,
            wal=self._read_wal(_HEADER_BYTES, at=0),
            sequence=known.sequence if known else 0,
        )

    def require_events(self, known: Link) -> None:
        """Raise `LogError` unless a new connection finds this event and all since the last one."""
        before = self._found or known
        with self._new_reader() as reader:
            cut = cut_link(reader, place=self._place).sequence
            if known.sequence <= cut:  # the event was there, otherwise it could not have been cut
                return
            require_link(reader, known, knows=_KNOWS, place=self._place)
            if before.sequence > cut:
                require_link(reader, before, knows=_KNOWS, place=self._place)
            after = max(cut, min(before.sequence, known.sequence) - EARLIER_EVENTS)
            count = reader.scalar(_count, {"after": after, "until": known.sequence})
        if count != known.sequence - after:
            raise LogCorrupt(f"events from {after + 1} to {known.sequence} are missing")

    def _require_same(self) -> None:
        """Raise `LogReplaced` unless all files are those that were opened; takes microseconds."""
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

    def _require_found(self, known: Link | None, now: Look) -> None:
        if self._written_by_others(self._seen, now):
            self._touched = True
        try:
            if known is not None:
                self.require_events(known)
        except LogError as error:
            if not _means_loss(error):
                raise
            self._touched, self._lost = True, known
            self._seen = now._replace(sequence=self._seen.sequence)
            raise self._overwritten(str(error)) from error
        self._found, self._lost = known, None

    def _written_by_others(self, before: Look, now: Look) -> bool:
        """Whether the file has changed in another way than by a checkpoint."""
        if before.same_file(now) or before.wal != now.wal:  # new header: the WAL was begun again
            return False
        if not self._wal_is_long(now):
            return True
        # Only a commit begins a checkpoint; it may be another process's.
        if now.sequence > before.sequence:
            return False
        try:
            with self._new_reader() as reader:
                return last_link(reader, place=self._place).sequence <= before.sequence
        except LogError as error:
            return _means_loss(error)

    def _wal_is_long(self, now: Look) -> bool:
        """Whether the WAL has so many pages that each commit begins a checkpoint."""
        page_size = int.from_bytes(now.wal[_PAGE_SIZE], "big")
        last = _HEADER_BYTES + (CHECKPOINT_PAGES - 1) * (_FRAME_HEADER_BYTES + page_size)
        frame = self._read_wal(_FRAME_HEADER_BYTES, at=last)
        # The salts distinguish pages of this WAL from remains of the previous one.
        return bool(frame) and frame[_FRAME_SALTS] == now.wal[_SALTS]

    def _read_wal(self, size: int, *, at: int) -> bytes:
        return b"" if self._wal is None else os.pread(self._wal, size, at)

    def _identify(self) -> list[tuple[int, int] | None]:
        """Device and inode of each file; None for a file that is missing or unreachable."""
        return [_device_and_inode(path) for path in self._paths]

    @contextmanager
    def _new_reader(self) -> Iterator[sa.Connection]:
        self._require_same()
        with as_log_errors(self._place, action="read"), self._engine.connect() as reader:
            yield reader

    def _overwritten(self, reason: str) -> LogReplaced:
        return LogReplaced(
            f"{self._place} was written to by another program while it was open:"
            f" {reason}; writes are refused until a whole copy is in its place"
        )


def _device_and_inode(path: str) -> tuple[int, int] | None:
    try:
        file = os.stat(path)
    except OSError:
        return None
    return file.st_dev, file.st_ino


def _means_loss(error: LogError) -> bool:
    """Whether the error means that events or a table are gone, not just unreadable now."""
    return means_damage(error) or sqlite_code(error.__cause__) == sqlite3.SQLITE_ERROR

"""Whether the file of a SQLite log still holds what this process knows, whoever has written to it.

A copy that is written over the open file keeps its inode, and commits go on to succeed: the
connections have their pages in memory. So whenever the file has changed, a new connection, which
sees what a restart would see, reads the newest known event and all numbers since the last time.
Most often the change is a checkpoint, after every few hundred commits. Where it is none, somebody
should read all events at once (`touched`).
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import sqlalchemy as sa

from service.core.errors import LogCorrupt, LogError, LogReplaced
from service.core.label_log.database import Database, as_log_errors, means_damage
from service.core.label_log.file_identity import FileIdentity
from service.core.label_log.links import Link, cut_link, last_link, require_link
from service.core.label_log.main_file import Look, MainFile
from service.core.label_log.schema import events

# Events before the last one that was found: they lie in pages that no commit since has written.
EARLIER_EVENTS = 64
_KNOWS = "this process has written or read"

_count = (
    sa.select(sa.func.count())
    .select_from(events)
    .where(events.c.sequence > sa.bindparam("after"), events.c.sequence <= sa.bindparam("until"))
)


class _Seen(NamedTuple):
    """A look at the file, and the newest event that was known then, 0 for none."""

    look: Look
    sequence: int = 0


class FileContents:
    """Reads events through new connections; any thread may use it."""

    def __init__(
        self, database: Database, path: Path, engine: sa.Engine, identity: FileIdentity
    ) -> None:
        """`engine` opens a new connection each time, only for reading.

        `identity` says whether it would open the file that is open here.
        """
        self._database, self._engine, self._identity = database, engine, identity
        self._file = MainFile(path, place=database.place)
        look = self._file.look()
        self._seen = self._asked = _Seen(look=look)
        self._settled, self._touched = look.settled, False
        self._found: Link | None = None  # the newest known event when the file was last read
        self._lost: Link | None = None  # the newest known event when it was not found
        self._lock = threading.RLock()

    @property
    def lost(self) -> bool:
        """Whether events were missing when the file was last read."""
        return self._lost is not None

    def require(self, known: Link | None, *, anew: bool = False) -> bool:
        """Read the file anew where it has changed, or with `anew`; returns whether that was done.

        Raises `LogReplaced` where the event `known` or one of those before it is missing, and
        `LogError` where the file cannot be read.
        """
        with self._lock:
            now = self._file.look()
            changed = not self._seen.look.same_file(now)
            # A change in the same tick of the clock as the one before shows no new time.
            read = changed or anew or self.lost or (now.settled and not self._settled)
            if read:
                self._identity.require_same()  # else the error would be another one
                self._settled = now.settled
                self._require_found(known, now)
            self._seen = _seen(now, known)
            return read

    def require_found_again(self) -> None:
        """Raise `LogReplaced` while events that were missing have not been found again."""
        if not self.lost:  # asked without the lock: whoever has it may wait for the disk
            return
        with self._lock:
            if self._settled and self._seen.look.same_file(self._file.look()):
                raise self._overwritten("events are missing")
            self.require(self._lost)

    def touched(self, known: Link | None) -> bool:
        """Whether another program seems to have written to the file since this was last asked."""
        with self._lock:
            touched, self._touched = self._touched, False
            with suppress(LogReplaced):  # a file that is gone: nobody writes to it
                now = self._file.look()
                touched = self._written_by_others(self._asked, now, known) or touched
                self._asked = _seen(now, known)
            return touched

    def close(self) -> None:
        """Let the file go."""
        self._file.close()

    def _require_found(self, known: Link | None, now: Look) -> None:
        if self._written_by_others(self._seen, now, known):
            self._touched = True
        try:
            if known is not None:
                self._require_events(known)
        except LogError as error:
            if not _means_loss(error):
                raise
            self._touched, self._lost = True, known
            self._seen = _Seen(look=now, sequence=self._seen.sequence)
            raise self._overwritten(str(error)) from error
        self._found, self._lost = known, None

    def _require_events(self, known: Link) -> None:
        place, before = self._database.place, self._found or known
        with self._new_reader() as reader:
            cut = cut_link(reader, place=place).sequence
            if known.sequence <= cut:  # only a log that held it could have been cut there
                return
            require_link(reader, known, knows=_KNOWS, place=place)
            if before.sequence > cut:
                require_link(reader, before, knows=_KNOWS, place=place)
            after = max(cut, min(before.sequence, known.sequence) - EARLIER_EVENTS)
            count = reader.scalar(_count, {"after": after, "until": known.sequence})
        if count != known.sequence - after:
            raise LogCorrupt(f"events from {after + 1} to {known.sequence} are missing")

    def _written_by_others(self, before: _Seen, now: Look, known: Link | None) -> bool:
        """Whether the file has changed and that was no checkpoint."""
        if before.look.same_file(now) or self._file.wal_begun_anew(before.look, now):
            return False
        if not self._file.wal_is_long(now):
            return True
        # Only after a commit can a checkpoint have begun; perhaps another process's.
        if known is not None and known.sequence > before.sequence:
            return False
        try:
            with self._new_reader() as reader:
                newest = last_link(reader, place=self._database.place)
        except LogError as error:
            return _means_loss(error)
        return newest.sequence <= before.sequence

    @contextmanager
    def _new_reader(self) -> Iterator[sa.Connection]:
        self._identity.require_same()
        with as_log_errors(self._database, action="read"), self._engine.connect() as reader:
            yield reader

    def _overwritten(self, reason: str) -> LogReplaced:
        return LogReplaced(
            f"{self._database.place} was written to by another program while it was open:"
            f" {reason}; writes are refused until a whole copy is in its place"
        )


def _seen(look: Look, known: Link | None) -> _Seen:
    return _Seen(look=look, sequence=known.sequence if known else 0)


def _means_loss(error: LogError) -> bool:
    """Whether events are gone, a missing table included, and not only cannot be read now."""
    code = getattr(getattr(error.__cause__, "orig", None), "sqlite_errorcode", None)
    return means_damage(error) or code == sqlite3.SQLITE_ERROR

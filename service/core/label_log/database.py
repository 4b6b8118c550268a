"""The base of the label log's databases; it reports their errors as `LogError`."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager, contextmanager

import sqlalchemy as sa

from service.core.errors import LogCorrupt, LogError, LogLocked, LogReplaced
from service.core.label_log.newest_note import NewestNote
from service.core.label_log.rows import Link, require_link

_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_LOCK_NOT_AVAILABLE = "55P03"  # PostgreSQL's code when `lock_timeout` has passed


class Database:
    """A database that several processes share: `sqlite.py` and `postgres.py` implement it."""

    place: str  # names the log in messages, without a password
    engine: sa.Engine
    reading: sa.Engine  # the same, for connections that only read
    across_machines = False  # whether processes of several machines may share it
    note: NewestNote | None = None  # only if files can be replaced while no process has them open

    def exclusive(self) -> AbstractContextManager[sa.Connection]:
        """Open a transaction; until it ends, no other process can be in an exclusive one."""
        raise NotImplementedError

    def signals(self, stop: threading.Event) -> Generator[int | None, None, None]:
        """Yield at once, then whenever a process may have appended; raises `LogError`.

        What is yielded is the newest event's number, or None if it is not known.
        """
        raise NotImplementedError

    def notify(self, connection: sa.Connection, newest: int) -> None:
        """Signal event `newest` to watching processes once the transaction is committed."""

    def shrink(self) -> None:
        """Return free space within the database to the disk."""

    def require_in_place(self) -> None:
        """Raise `LogReplaced` unless a restart would open the same log."""

    def require_known(self, known: Link | None) -> None:
        """Raise `LogReplaced` if the files have changed and no longer hold the event `known`."""

    def require_written(self, newest: Link) -> None:
        """Raise `LogReplaced` unless another connection reads `newest`, the event just written."""
        with self.reading.connect() as reader:
            require_link(reader, newest, knows="this process has just written", place=self.place)

    def touched(self, known: Link | None) -> bool:
        """Whether other programs seem to have written to the files since the last call."""
        return False

    def close(self) -> None:
        """Close all connections."""
        self.engine.dispose()


@contextmanager
def as_log_errors(place: str, *, action: str) -> Iterator[None]:
    """Raise a database's errors as `LogError`; the message is "PLACE cannot be ACTION: REASON"."""
    try:
        yield
    except sa.exc.SQLAlchemyError as error:
        if lock_timed_out(error):
            why = "another process held its lock for too long"
            raise LogLocked(f"{place} cannot be {action}: {why}") from error
        raise LogError(f"{place} cannot be {action}: {reason(error)}") from error
    except UnicodeDecodeError as error:  # SQLite's message quotes a damaged name
        raise LogCorrupt(f"{place} cannot be {action}: its tables' names are damaged") from error


def reason(error: BaseException) -> str:
    """Return the database's own message on one line, without the statement and its values."""
    return " ".join(str(getattr(error, "orig", None) or error).split())


def lock_timed_out(error: sa.exc.SQLAlchemyError) -> bool:
    """Whether the error means that another process held a lock for too long."""
    if sqlite_code(error) == sqlite3.SQLITE_BUSY:
        return True
    return getattr(getattr(error, "orig", None), "sqlstate", None) == _LOCK_NOT_AVAILABLE


def sqlite_code(error: BaseException | None) -> int:
    """Return the primary code of a SQLite error, without its higher bits; 0 for any other error."""
    code: int = getattr(getattr(error, "orig", None), "sqlite_errorcode", 0)
    return code & 0xFF


def means_damage(error: LogError) -> bool:
    """Whether the log is damaged or replaced, and not only unreachable."""
    return isinstance(error, LogCorrupt | LogReplaced) or sqlite_code(error.__cause__) in _DAMAGED

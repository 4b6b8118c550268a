"""What the log needs from a database beyond SQL, and its errors as `LogError`."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

import sqlalchemy as sa

from service.core.errors import LogCorrupt, LogError, LogLocked, LogReplaced
from service.core.label_log.links import Link
from service.core.label_log.newest_note import NewestNote

_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


class Database(Protocol):
    """A database that several processes share: `sqlite.py` and `postgres.py` implement it."""

    place: str  # names the log in messages, without a password
    engine: sa.Engine
    note: NewestNote | None  # where the files can be replaced while no process has them open

    def exclusive(self) -> AbstractContextManager[sa.Connection]:
        """Open one transaction; no other process can be in an exclusive transaction meanwhile."""
        ...

    def notify(self, connection: sa.Connection) -> None:
        """Wake the watching processes once the transaction of `connection` is committed."""
        ...

    def signals(self, stop: threading.Event) -> Generator[None, None, None]:
        """Yield at once, then whenever some process may have appended, until `stop` is set.

        Raises `LogError` when the connection is lost.
        """
        ...

    def shrink(self) -> None:
        """Give free space within the database back to the disk."""
        ...

    def require_in_place(self) -> None:
        """Raise `LogReplaced` unless a restart would open what is open here."""
        ...

    def require_known(self, known: Link | None) -> None:
        """Raise `LogReplaced` where the files changed and no longer hold this event."""
        ...

    def require_written(self, newest: Link) -> None:
        """Raise `LogReplaced` unless another connection reads the event just written."""
        ...

    def touched(self, known: Link | None) -> bool:
        """Whether another program seems to have written to the files since this was last asked.

        `known` is the newest event that this process knows.
        """
        ...

    def close(self) -> None:
        """Close all connections."""
        ...

    def lock_timed_out(self, error: sa.exc.DBAPIError) -> bool:
        """Return whether the error means that another process held a lock for too long."""
        ...


@contextmanager
def as_log_errors(database: Database, *, action: str) -> Iterator[None]:
    """Raise the database's errors as `LogError`: "PLACE cannot be ACTION: REASON"."""
    try:
        yield
    except sa.exc.SQLAlchemyError as error:
        what = f"{database.place} cannot be {action}"
        if isinstance(error, sa.exc.DBAPIError) and database.lock_timed_out(error):
            raise LogLocked(f"{what}: another process held its lock for too long") from error
        raise LogError(f"{what}: {reason(error)}") from error


def reason(error: BaseException) -> str:
    """Return the database's own message on one line, without the statement and its values."""
    return " ".join(str(getattr(error, "orig", None) or error).split())


def means_damage(error: LogError) -> bool:
    """Whether an error means that the log is damaged or replaced, not that it is unreachable."""
    code = getattr(getattr(error.__cause__, "orig", None), "sqlite_errorcode", 0)
    return isinstance(error, LogCorrupt | LogReplaced) or code & 0xFF in _DAMAGED

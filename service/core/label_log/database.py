"""What the log needs of a database beyond SQL, and how a database's failures are told."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

import sqlalchemy as sa

from service.core.errors import LogError, LogLocked


class Database(Protocol):
    """A database that several processes share; each kind has a file of its own."""

    place: str  # for messages; holds no password
    engine: sa.Engine

    def exclusive(self) -> AbstractContextManager[sa.Connection]:
        """One transaction that no other exclusive one runs beside, in any process."""
        ...

    def announce(self, connection: sa.Connection) -> None:
        """Wake those who watch, once the transaction of `connection` is committed."""
        ...

    def signals(self, stop: threading.Event) -> Generator[None, None, None]:
        """Yield at once, then whenever somebody may have appended, until `stop` is set.

        Raises `LogError` when the connection is lost.
        """
        ...

    def waited_in_vain(self, error: sa.exc.DBAPIError) -> bool:
        """Whether the error says that another process held a lock for too long."""
        ...


@contextmanager
def failures_of(database: Database, *, when: str) -> Iterator[None]:
    """Raise the database's errors as `LogError` that names the place; `when` it "cannot be ..."."""
    try:
        yield
    except sa.exc.SQLAlchemyError as error:
        what = f"{database.place} cannot be {when}"
        if isinstance(error, sa.exc.DBAPIError) and database.waited_in_vain(error):
            raise LogLocked(f"{what}: another process held its lock for too long") from error
        raise LogError(f"{what}: {reason(error)}") from error


def reason(error: BaseException) -> str:
    """The database's own words on one line, without the statement and its values."""
    return " ".join(str(getattr(error, "orig", None) or error).split())

"""The label log: all writes in one order without gaps, on disk before they are answered.

Several processes append to one log: through a SQLite file on one machine, or through PostgreSQL on
several. To append, a process holds the log's lock for one transaction, reads what others have
appended meanwhile, and numbers its own events after those. `schema.py` describes the tables.
"""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa

from service.core.errors import InvalidConfig
from service.core.label_log.log import Appending, LabelLog
from service.core.label_log.rows import AnsweredRequest
from service.core.label_log.schema import FORMAT_VERSION
from service.core.label_log.sqlite import SqliteDatabase

__all__ = ["FORMAT_VERSION", "AnsweredRequest", "Appending", "LabelLog", "open_log"]

_SCHEMES = ("postgresql", "postgresql+psycopg")


def open_log(state: Path | str, *, create: bool = True) -> LabelLog:
    """Open the log in a state folder or in the database of a PostgreSQL URL.

    With `create`, the log is created if there is none. Without it, the log is opened only for
    reading, while other processes may append.

    Raises `LogError` if the log cannot be opened (the message names the place, never a password),
    `InvalidConfig` for another kind of URL, and `MissingExtra` if psycopg is not installed.
    """
    if isinstance(state, str) and "://" in state:
        url = _postgres_url(state)
        from service.core.label_log.postgres import PostgresDatabase  # needs an extra

        return LabelLog(PostgresDatabase(url, create=create), state=state, create=create)
    folder = Path(state)
    return LabelLog(SqliteDatabase(folder, create=create), state=folder, create=create)


def _postgres_url(text: str) -> sa.URL:
    """Parse a URL. Errors do not quote it, because it may contain a password."""
    forms = "a folder or postgresql://USER:PASSWORD@HOST:PORT/DATABASE[?options=...]"
    scheme = text.partition("://")[0]
    if scheme not in _SCHEMES:
        raise InvalidConfig(f"the state must be {forms}, not a URL that begins with {scheme}://")
    try:
        return sa.make_url(text)
    except (sa.exc.ArgumentError, ValueError):
        raise InvalidConfig(f"the state's URL cannot be read; allowed: {forms}") from None

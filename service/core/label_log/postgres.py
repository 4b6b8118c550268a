"""The log in a PostgreSQL schema that replicas on several machines share.

Events are numbered under an advisory lock. With a plain sequence, transactions could commit out of
order, and a reader that asks for the rows after its last number would miss some. Each append
notifies the other replicas.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any, TypeVar

import sqlalchemy as sa

from service.core.errors import LogError, MissingExtra
from service.core.label_log.database import as_log_errors, reason
from service.core.label_log.links import Link, require_link
from service.core.label_log.newest_note import NewestNote
from service.core.label_log.rows import MOSTLY_BYTES

try:
    import psycopg
    from psycopg.abc import PQGen
except ImportError as error:
    raise MissingExtra("psycopg", extra="postgres") from error

CONNECT_SECONDS = 5
SILENCE_SECONDS = 6.0  # longer than the server's own limits below, whose errors are more precise
SIGNAL_SECONDS = 0.5  # the longest pause between two signals, in case a notification is lost

# These limits apply unless the URL or the role sets others. The last one frees the lock of a
# replica that stopped within a transaction, so that the other replicas do not wait for ever.
_LIMITS = """
SELECT set_config(name, value, false)
FROM (VALUES ('lock_timeout', '4s'), ('statement_timeout', '5s'),
             ('idle_in_transaction_session_timeout', '30s')) AS wanted (name, value)
WHERE current_setting(name) = '0'
"""
_SCHEMA_AND_MODE = sa.text("SELECT current_schema(), current_setting('transaction_read_only')")
# A server may be configured to confirm commits before they are on disk; this transaction overrides
# that. The newest number must be read by a later statement: only a statement that starts after the
# lock was granted sees all that was committed before.
_LOCK = sa.text("""
SELECT pg_advisory_xact_lock(CAST(:key AS bigint)),
       CASE WHEN current_setting('synchronous_commit') IN ('off', 'local', 'remote_write')
            THEN set_config('synchronous_commit', 'on', true) END
""")
_NOTIFY = sa.text("SELECT pg_notify(:channel, '')")
_LOCK_NOT_AVAILABLE = "55P03"
_SECRETS = ("password", "sslpassword", "passfile", "oauth_client_secret")

RV = TypeVar("RV")


class PostgresDatabase:
    """The current schema of a PostgreSQL connection."""

    note: NewestNote | None = None

    def __init__(self, url: sa.URL, *, create: bool) -> None:
        """Connect and find the current schema; without `create` nothing can be written.

        Raises `LogError` if the server cannot be reached or refuses the connection.
        """
        hidden = {name: "***" for name in _SECRETS if name in url.query}
        self.place = url.update_query_dict(hidden).render_as_string(hide_password=True)
        engine = _engine(url.set(drivername="postgresql+psycopg"), readonly=not create)
        self.engine = engine
        try:
            with as_log_errors(self, action="opened"), engine.connect() as connection:
                schema, readonly = connection.execute(_SCHEMA_AND_MODE).one()
            if schema is None:
                raise LogError(
                    f"{self.place} cannot be opened: no schema of its search_path exists"
                )
            if create and readonly == "on":
                raise LogError(
                    f"{self.place} cannot be written: the server is a standby or read-only"
                )
        except BaseException:
            engine.dispose()
            raise
        # Every statement names the schema: equal tables in other schemas belong to other logs.
        self.engine = engine.execution_options(schema_translate_map={None: schema})
        mark = hashlib.sha256(f"keymatch label log\0{schema}".encode()).digest()[:8]
        self._key = int.from_bytes(mark, "big", signed=True)
        self._channel = f"keymatch_{mark.hex()}"

    @contextmanager
    def exclusive(self) -> Iterator[sa.Connection]:
        """Open a transaction that holds the schema's advisory lock."""
        with self.engine.begin() as connection:
            connection.execute(_LOCK, {"key": self._key})
            yield connection

    def notify(self, connection: sa.Connection) -> None:
        """Notify the listening replicas; the server sends it when the transaction commits."""
        connection.execute(_NOTIFY, {"channel": self._channel})

    def signals(self, stop: threading.Event) -> Generator[None, None, None]:
        """Yield at each notification, and at least every `SIGNAL_SECONDS`.

        Raises `LogError` when the connection is lost.
        """
        with as_log_errors(self, action="watched"), self.engine.connect() as connection:
            connection.execution_options(isolation_level="AUTOCOMMIT")
            listening = connection.connection.driver_connection
            assert isinstance(listening, psycopg.Connection)
            connection.detach()  # it listens from now on, so it must not go back to the pool
            connection.exec_driver_sql(f"LISTEN {self._channel}")
            yield
            while not stop.is_set():
                try:
                    for _ in listening.notifies(timeout=SIGNAL_SECONDS, stop_after=1):
                        pass
                except psycopg.Error as error:
                    raise LogError(f"{self.place} cannot be watched: {reason(error)}") from error
                yield

    def shrink(self) -> None:
        """Do nothing: the server's autovacuum frees the space for new events."""

    def require_in_place(self) -> None:
        """Do nothing: a client cannot remove the server's files."""

    def require_known(self, known: Link | None) -> None:
        """Do nothing: a client cannot write to the server's files."""

    def require_written(self, newest: Link) -> None:
        """Raise `LogReplaced` unless the server says that the log holds this event."""
        with self.engine.connect() as reader:
            require_link(reader, newest, knows="this process has just written", place=self.place)

    def touched(self, known: Link | None) -> bool:
        """Nobody can tell from here."""
        return False

    def close(self) -> None:
        """Close all connections of the pool."""
        self.engine.dispose()

    def lock_timed_out(self, error: sa.exc.DBAPIError) -> bool:
        """Return whether the server's `lock_timeout` has passed."""
        return getattr(error.orig, "sqlstate", None) == _LOCK_NOT_AVAILABLE


class _ImpatientConnection(psycopg.Connection[Any]):
    """Gives up on a server that sends nothing; the server's own limits need a working server."""

    def wait(self, gen: PQGen[RV], *args: Any, **how: Any) -> RV:
        return super().wait(self._until_silent(gen), *args, **how)

    def _until_silent(self, steps: PQGen[RV]) -> PQGen[RV]:
        """Run `steps`, and close the connection when the server is silent for too long."""
        heard = monotonic()
        try:
            wanted = next(steps)
            while True:
                ready = yield wanted
                if ready:
                    heard = monotonic()
                elif monotonic() - heard > SILENCE_SECONDS:
                    self.close()  # the rest of an answer may still arrive: do not reuse it
                    raise psycopg.OperationalError(f"no answer for {SILENCE_SECONDS:.0f} s")
                wanted = steps.send(ready)
        except StopIteration as end:
            result: RV = end.value
            return result


def _engine(url: sa.URL, *, readonly: bool) -> sa.Engine:
    defaults = {
        "connect_timeout": CONNECT_SECONDS,
        "tcp_user_timeout": CONNECT_SECONDS * 1000,
        "fallback_application_name": "keymatch",
    }
    engine = sa.create_engine(
        url,
        connect_args={name: value for name, value in defaults.items() if name not in url.query},
        execution_options={"postgresql_readonly": True} if readonly else {},
        hide_parameters=True,  # values are users' texts and must not appear in errors
        isolation_level="READ COMMITTED",  # each statement sees what others have committed
        pool_pre_ping=True,  # reconnect at the next statement after the server was restarted
        pool_timeout=CONNECT_SECONDS,
        use_native_hstore=False,  # saves one query per connection
    )

    @sa.event.listens_for(engine, "do_connect")
    def connect(_dialect: Any, _record: Any, arguments: Any, options: Any) -> Any:
        return _ImpatientConnection.connect(*arguments, **options)

    @sa.event.listens_for(engine, "connect")
    def configure(connection: psycopg.Connection[Any], _record: Any) -> None:
        connection.execute(_LIMITS)
        connection.commit()

    @sa.event.listens_for(engine, "before_cursor_execute")
    def choose_format(
        _connection: Any, cursor: Any, _statement: Any, _values: Any, context: Any, _many: Any
    ) -> None:
        if context is not None and context.execution_options.get(MOSTLY_BYTES):
            cursor.format = (
                psycopg.pq.Format.BINARY
            )  # as text, bytes would be hexadecimal: twice as slow

    return engine

"""The log in a PostgreSQL schema that replicas on several machines share.

Events are numbered under an advisory lock. With a plain sequence, transactions could commit out of
order, and a reader that asks for the rows after its last number would miss some.

Each append notifies the server's listeners of the newest number. One process of each machine
listens, and passes the number on to the others (`machine.py`).
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager, suppress
from time import monotonic
from typing import Any, TypeVar

import sqlalchemy as sa

from service.core.errors import LogError, MissingExtra
from service.core.label_log import machine
from service.core.label_log.database import Database, as_log_errors, reason
from service.core.label_log.rows import MOSTLY_BYTES

try:
    import psycopg
    from psycopg.abc import PQGen
except ImportError as error:
    raise MissingExtra("psycopg", extra="postgres") from error

CONNECT_SECONDS = 5
SILENCE_SECONDS = 6.0  # longer than the server's own limits below: their errors are more precise
SIGNAL_SECONDS = 0.5  # the longest pause between two signals, in case a notification is lost
SHORTEST_PAUSE_SECONDS = (
    0.005  # between two notifications that are passed on; appends may be faster
)
_JOIN_SECONDS = 0.01  # between two attempts to connect to a listener that is about to be open

# These limits apply unless the URL or the role sets others. The last one frees the lock of a
# replica that hangs in a transaction, so other replicas do not wait for ever.
_LIMITS = """
SELECT set_config(name, value, false)
FROM (VALUES ('lock_timeout', '4s'), ('statement_timeout', '5s'),
             ('idle_in_transaction_session_timeout', '30s')) AS wanted (name, value)
WHERE current_setting(name) = '0'
"""
_SCHEMA_AND_MODE = sa.text("SELECT current_schema(), current_setting('transaction_read_only')")
# A server may be configured to confirm commits before they are on disk; this transaction overrides
# that. The newest number must be read by a later statement: only a statement that starts after the
# lock was granted sees everything that was committed before.
_LOCK = sa.text("""
SELECT pg_advisory_xact_lock(CAST(:key AS bigint)),
       CASE WHEN current_setting('synchronous_commit') IN ('off', 'local', 'remote_write')
            THEN set_config('synchronous_commit', 'on', true) END
""")
_NOTIFY = sa.text("SELECT pg_notify(:channel, :newest)")
# Codes of errors after which another session may succeed: this one is read-only, since its server
# was demoted, or its server ends, starts, or has ended the session.
_SESSION_IS_LOST = ("25006", "25P03", "57P01", "57P02", "57P03")
_SECRETS = ("password", "sslpassword", "passfile", "oauth_client_secret")

RV = TypeVar("RV")


class PostgresDatabase(Database):
    """The current schema of a PostgreSQL connection.

    Clients cannot remove or write to the server's files. The server's autovacuum frees space for
    new events.
    """

    across_machines = True

    def __init__(self, url: sa.URL, *, create: bool) -> None:
        """Connect and find the current schema; raises `LogError`. Writes need `create`."""
        hidden = {name: "***" for name in _SECRETS if name in url.query}
        self.place = url.update_query_dict(hidden).render_as_string(hide_password=True)
        engine = _engine(url.set(drivername="postgresql+psycopg"), readonly=not create)
        self.engine = engine
        try:
            with as_log_errors(self.place, action="opened"), engine.connect() as connection:
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
        # Each statement names the schema: tables of the same name elsewhere belong to other logs.
        self.engine = engine.execution_options(schema_translate_map={None: schema})
        # Each statement sees what others committed, with or without a transaction around it.
        self.reading = self.engine.execution_options(isolation_level="AUTOCOMMIT")
        mark = hashlib.sha256(f"keymatch label log\0{schema}".encode()).digest()[:8]
        self._key = int.from_bytes(mark, "big", signed=True)
        self._channel = f"keymatch_{mark.hex()}"
        # Processes with other URLs may reach another server, so they get no signals from this one.
        self._name = hashlib.sha256(f"{self.place}\0{schema}".encode()).hexdigest()[:32]

    @contextmanager
    def exclusive(self) -> Iterator[sa.Connection]:
        """Open a transaction that holds the schema's advisory lock."""
        with self.engine.begin() as connection:
            connection.execute(_LOCK, {"key": self._key})
            yield connection

    def notify(self, connection: sa.Connection, newest: int) -> None:
        """Notify the listeners of a number; the server sends this when the transaction commits."""
        connection.execute(_NOTIFY, {"channel": self._channel, "newest": str(newest)})

    def signals(self, stop: threading.Event) -> Generator[int | None, None, None]:
        """Yield each notified number, and None at start and at least every `SIGNAL_SECONDS`.

        Numbers that follow within `SHORTEST_PAUSE_SECONDS` are yielded as one, the newest.
        """
        deadline = monotonic() + SIGNAL_SECONDS
        while not stop.is_set():
            try:
                listener, follower = machine.claim(self._name), None
                if listener is None:
                    follower = machine.join(self._name)
            except PermissionError:
                listener = machine.Listener(None)
            if listener is not None:
                with closing(listener):
                    yield from self._listened(listener, stop)
            elif follower is not None:
                with closing(follower):
                    yield from _passed_on(follower, stop)
                deadline = monotonic() + SIGNAL_SECONDS
            elif monotonic() > deadline:
                raise LogError(
                    f"{self.place} cannot be watched: this machine's listener is not ready"
                )
            else:
                stop.wait(_JOIN_SECONDS)

    def _listened(
        self, listener: machine.Listener, stop: threading.Event
    ) -> Generator[int | None, None, None]:
        """Listen to the server until `stop` is set, and pass on what it sends."""
        with as_log_errors(self.place, action="watched"), self.reading.connect() as connection:
            listening = connection.connection.driver_connection
            assert isinstance(listening, psycopg.Connection)
            connection.detach()  # it listens from now on and must not return to the pool
            connection.exec_driver_sql(f"LISTEN {self._channel}")
            listener.open()
            yield None
            while not stop.is_set():
                newest: int | None = None
                try:
                    for notice in listening.notifies(timeout=SIGNAL_SECONDS, stop_after=1):
                        if notice.payload.isdecimal():
                            newest = int(notice.payload)
                except psycopg.Error as error:
                    raise LogError(f"{self.place} cannot be watched: {reason(error)}") from error
                if newest is not None:
                    listener.send(newest)
                yield newest
                if newest is not None:
                    stop.wait(SHORTEST_PAUSE_SECONDS)


def _passed_on(
    follower: machine.Follower, stop: threading.Event
) -> Generator[int | None, None, None]:
    """Yield what this machine's listener passes on, until it ends or `stop` is set."""
    yield None  # events may have been appended before it was joined
    with suppress(EOFError):
        while not stop.is_set():
            yield follower.receive(seconds=SIGNAL_SECONDS)


class _ImpatientConnection(psycopg.Connection[Any]):
    """Gives up on a server that sends nothing: only a working server applies its own limits."""

    def wait(self, gen: PQGen[RV], *args: Any, **how: Any) -> RV:
        return super().wait(self._until_silent(gen), *args, **how)

    def _until_silent(self, steps: PQGen[RV]) -> PQGen[RV]:
        """Run `steps`; close the connection if the server is silent for too long."""
        heard = monotonic()
        try:
            wanted = next(steps)
            while True:
                ready = yield wanted
                if ready:
                    heard = monotonic()
                elif monotonic() - heard > SILENCE_SECONDS:
                    self.close()  # not reusable: the rest of an answer may still arrive
                    raise psycopg.OperationalError(f"no answer for {SILENCE_SECONDS:.0f} s")
                wanted = steps.send(ready)
        except StopIteration as end:
            result: RV = end.value
            return result


def _is_readonly(connection: psycopg.Connection[Any]) -> bool:
    """Whether the server is a standby or read-only, as it said last; servers before 14 do not."""
    said = connection.info.parameter_status
    return "on" in (said("in_hot_standby"), said("default_transaction_read_only"))


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
        hide_parameters=True,  # values are users' texts: they must not appear in errors
        isolation_level="READ COMMITTED",  # each statement sees what others committed
        pool_pre_ping=True,  # reconnects at the next statement after a restart of the server
        pool_timeout=CONNECT_SECONDS,
        use_native_hstore=False,  # saves one query per connection
    )

    @sa.event.listens_for(engine, "do_connect")
    def connect(_dialect: Any, _record: Any, arguments: Any, options: Any) -> Any:
        return _ImpatientConnection.connect(*arguments, **options)

    @sa.event.listens_for(engine, "connect")
    def configure(connection: psycopg.Connection[Any], record: Any) -> None:
        connection.execute(_LIMITS)
        connection.commit()
        record.info["readonly"] = _is_readonly(connection)

    # Without these two, sessions of a demoted primary would stay in the pool: they answer the ping.
    # Such a session fails when it writes, and when it only reads, it misses all new events.
    @sa.event.listens_for(engine, "checkout")
    def refuse_demoted(connection: psycopg.Connection[Any], record: Any, _proxy: Any) -> None:
        if _is_readonly(connection) and not record.info["readonly"]:
            raise sa.exc.DisconnectionError("this session's server was demoted")

    @sa.event.listens_for(engine, "handle_error")
    def drop_lost(context: sa.engine.ExceptionContext) -> None:
        if getattr(context.original_exception, "sqlstate", None) in _SESSION_IS_LOST:
            context.is_disconnect = True

    @sa.event.listens_for(engine, "before_cursor_execute")
    def choose_format(
        _connection: Any, cursor: Any, _statement: Any, _values: Any, context: Any, _many: Any
    ) -> None:
        if context is not None and context.execution_options.get(MOSTLY_BYTES):
            # In text format, bytes would be hexadecimal and twice as slow.
            cursor.format = psycopg.pq.Format.BINARY

    return engine

"""The label log: every live change in one gapless order, on disk before it is answered.

| column     | content                                                                      |
|------------|------------------------------------------------------------------------------|
| `sequence` | 1, 2, 3, ... without a gap; the memory's version is its newest event's number  |
| `kind`     | what happened, a name of `EVENT_KINDS`                                        |
| `body`     | JSON: the texts; a new encoder can be applied to them                         |
| `vectors`  | fp16 [n, d] of those texts, row by row, so that a restart need not encode     |
| `encoder`  | fingerprint of the encoder that made the vectors                              |
| `checksum` | CRC-32 over all columns above                                                 |
| `written`  | Unix time in seconds                                                          |

Table `log_format` holds one row with the format version, 1. The database is SQLite in WAL mode with
synchronous=FULL: a commit that returned is on the disk. One process writes, held by a file lock.
"""

from __future__ import annotations

import fcntl
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import sqlalchemy as sa

from service.core.errors import LogCorrupt, LogError, LogLocked
from service.core.types import Event, Halves

FORMAT_VERSION = 1
PUT_LABEL = "label.put"
EVENT_KINDS = (PUT_LABEL,)

_PAGE_EVENTS = 1000

_schema = sa.MetaData()
_format = sa.Table("log_format", _schema, sa.Column("version", sa.Integer, nullable=False))
_events = sa.Table(
    "events",
    _schema,
    sa.Column("sequence", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True),
    sa.Column("kind", sa.String(32), nullable=False),
    sa.Column("body", sa.LargeBinary, nullable=False),
    sa.Column("vectors", sa.LargeBinary, nullable=False),
    sa.Column("encoder", sa.String(64), nullable=False),
    sa.Column("checksum", sa.BigInteger, nullable=False),
    sa.Column("written", sa.Float, nullable=False),
)
# The columns as they are stored: a value of another type fails its checksum, not its conversion.
_stored: list[sa.ColumnElement[Any]] = [
    sa.type_coerce(column, sa.types.NullType()).label(column.name) for column in _events.c
]


@dataclass(frozen=True, kw_only=True)
class NewEvent:
    """An event before the log has given it its place; vectors are fp16 [n, d]."""

    kind: str
    body: Mapping[str, Any]
    vectors: Halves


class LabelLog:
    """The log of one state folder; `append` belongs to the single writer."""

    def __init__(self, folder: Path) -> None:
        """Open or create the log in `folder` and become its writer.

        Raises `LogLocked` when another process is, and `LogError` when the folder or database
        cannot be used or is not a log of this format.
        """
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = (folder / "writer.lock").open("w")
        except OSError as error:
            raise LogError(f"state folder {folder} cannot be used: {error.strerror}") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._lock.close()
            raise LogLocked(f"another process writes to the state folder {folder}") from error
        self._path = folder / "labels.sqlite"
        self._engine = _connect(self._path)
        try:
            self._last = self._prepare()
        except BaseException:
            self.close()
            raise

    @property
    def last_sequence(self) -> int:
        """The newest event's number, 0 for an empty log."""
        return self._last

    def append(self, events: Sequence[NewEvent], *, encoder: str) -> list[Event]:
        """Write events in one transaction; returns them with their numbers once they are synced.

        Raises `LogError`, and then none of them is written.
        """
        numbered = [
            Event(
                sequence=self._last + place,
                kind=event.kind,
                body=event.body,
                vectors=event.vectors,
                encoder=encoder,
            )
            for place, event in enumerate(events, start=1)
        ]
        if not numbered:
            return []
        try:
            with self._engine.begin() as connection:
                connection.execute(_events.insert(), [_row(event) for event in numbered])
        except sa.exc.SQLAlchemyError as error:
            raise LogError(f"the label log cannot be written: {_reason(error)}") from error
        self._last = numbered[-1].sequence
        return numbered

    def read(self, *, after: int = 0) -> Iterator[Event]:
        """All events behind `after`, in order.

        Raises `LogCorrupt` at a gap or a wrong checksum, naming the event.
        """
        while True:
            page = self._page(after)
            for row in page:
                if row.sequence != after + 1:
                    raise LogCorrupt(f"{self._path}: event {after + 1} is missing")
                after += 1
                yield _event(row, self._path)
            if len(page) < _PAGE_EVENTS:
                return

    def close(self) -> None:
        """Give up the writer's place."""
        self._engine.dispose()
        self._lock.close()

    def _page(self, after: int) -> Sequence[sa.Row[Any]]:
        query = (
            sa.select(*_stored)
            .where(_events.c.sequence > after)
            .order_by(_events.c.sequence)
            .limit(_PAGE_EVENTS)
        )
        try:
            with self._engine.connect() as connection:
                return connection.execute(query).all()
        except sa.exc.SQLAlchemyError as error:
            raise LogError(f"{self._path} cannot be read: {_reason(error)}") from error

    def _prepare(self) -> int:
        """Create the tables if they are not there; returns the newest event's number."""
        try:
            with self._engine.begin() as connection:
                _schema.create_all(connection)
                version = connection.scalar(sa.select(_format.c.version))
                if version is None:
                    version = FORMAT_VERSION
                    connection.execute(_format.insert().values(version=version))
                last = connection.scalar(sa.select(sa.func.max(_events.c.sequence)))
        except sa.exc.DatabaseError as error:
            raise LogError(f"{self._path} cannot be opened: {_reason(error)}") from error
        if version != FORMAT_VERSION:
            raise LogError(
                f"{self._path} has log format {version}; this build reads {FORMAT_VERSION}"
            )
        return last or 0


def _connect(path: Path) -> sa.Engine:
    engine = sa.create_engine(sa.URL.create("sqlite", database=str(path)))

    @sa.event.listens_for(engine, "connect")
    def configure(connection: Any, _record: Any) -> None:
        connection.isolation_level = None  # SQLAlchemy, not the driver, begins transactions
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "busy_timeout=5000"):
            connection.execute(f"PRAGMA {pragma}")

    @sa.event.listens_for(engine, "begin")
    def begin(connection: sa.Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine


def _row(event: Event) -> dict[str, Any]:
    assert event.vectors is not None
    body, vectors = orjson.dumps(event.body), event.vectors.tobytes()
    return {
        "sequence": event.sequence,
        "kind": event.kind,
        "body": body,
        "vectors": vectors,
        "encoder": event.encoder,
        "checksum": _checksum(event.sequence, event.kind, body, vectors, event.encoder),
        "written": time.time(),
    }


def _event(row: sa.Row[Any], path: Path) -> Event:
    try:
        expected = _checksum(row.sequence, row.kind, row.body, row.vectors, row.encoder)
    except (AttributeError, TypeError):  # text where bytes were written, or the other way round
        expected = -1
    if row.checksum != expected or row.kind not in EVENT_KINDS:
        raise LogCorrupt(f"{path}: event {row.sequence} is not as it was written")
    return Event(
        sequence=row.sequence,
        kind=row.kind,
        body=orjson.loads(row.body),
        vectors=np.frombuffer(row.vectors, np.float16),
        encoder=row.encoder,
    )


def _checksum(sequence: int, kind: str, body: bytes, vectors: bytes, encoder: str) -> int:
    return zlib.crc32(
        b"\0".join([b"%d" % sequence, kind.encode(), body, vectors, encoder.encode()])
    )


def _reason(error: sa.exc.SQLAlchemyError) -> str:
    return str(getattr(error, "orig", None) or error)

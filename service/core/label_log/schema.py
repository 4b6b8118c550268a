"""The tables of the label log, format version 2.

`events`, one row per event:

| column     | content                                                                      |
|------------|------------------------------------------------------------------------------|
| `sequence` | 1, 2, 3, ... without a gap; a view's version is the number of its last event   |
| `kind`     | the kind of write, one of `EVENT_KINDS`                                       |
| `body`     | JSON of the write with its texts, which another encoder can encode again      |
| `vectors`  | fp16 [n, d] of those texts, row by row, so that a restart need not encode     |
|            | them; empty for an event without texts                                        |
| `encoder`  | fingerprint of the encoder that made the vectors                              |
| `checksum` | CRC-32 over all columns above                                                 |
| `written`  | Unix time in seconds                                                          |
| `chain`    | hash over this event and all before it, see `chain.py`                        |

`requests`, one row per write that carried an idempotency key, kept for a day:

| column     | content                                                                      |
|------------|------------------------------------------------------------------------------|
| `key`      | the client's idempotency key                                                 |
| `digest`   | of the request, to detect a key that is used for a different request          |
| `version`  | the memory version that holds the write                                      |
| `answer`   | JSON: the response that the client got                                        |
| `written`  | Unix time in seconds                                                          |

`log_format`, one row:

| column      | content                                                                      |
|-------------|------------------------------------------------------------------------------|
| `version`   | of the format                                                                |
| `id`        | 32 hexadecimal digits, drawn when the log was created. A snapshot keeps them, |
|             | so that it is never combined with the events of another log                  |
| `cut`       | the newest event that was cut from the beginning, 0 for none                 |
| `cut_chain` | its chain                                                                    |

Format 1 had neither `chain` nor `cut`; `upgrade.py` brings such a log to format 2.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass

import sqlalchemy as sa

from service.core.errors import LogError
from service.core.label_log.chain import first_chain

FORMAT_VERSION, FORMAT_BEFORE = 2, 1

_schema = sa.MetaData()
log_format = sa.Table(
    "log_format",
    _schema,
    sa.Column("version", sa.Integer, nullable=False),
    sa.Column("id", sa.String(32), nullable=False),
    sa.Column("cut", sa.BigInteger, nullable=False),
    sa.Column("cut_chain", sa.LargeBinary, nullable=False),
)
events = sa.Table(
    "events",
    _schema,
    sa.Column(
        "sequence",
        sa.BigInteger().with_variant(sa.Integer, "sqlite"),
        primary_key=True,
        autoincrement=False,  # the log numbers events itself; a database's sequence leaves gaps
    ),
    sa.Column("kind", sa.String(32), nullable=False),
    sa.Column("body", sa.LargeBinary, nullable=False),
    sa.Column("vectors", sa.LargeBinary, nullable=False),
    sa.Column("encoder", sa.String(64), nullable=False),
    sa.Column("checksum", sa.BigInteger, nullable=False),
    sa.Column("written", sa.Double, nullable=False),
    sa.Column("chain", sa.LargeBinary, nullable=False),
)
requests = sa.Table(
    "requests",
    _schema,
    sa.Column("key", sa.String, primary_key=True),
    sa.Column("digest", sa.String, nullable=False),
    sa.Column("version", sa.BigInteger, nullable=False),
    sa.Column("answer", sa.LargeBinary, nullable=False),
    sa.Column("written", sa.Double, nullable=False),
)
_events_by_kind = sa.Index("events_by_kind", events.c.kind, events.c.sequence)
_requests_by_age = sa.Index("requests_by_age", requests.c.written)


@dataclass(frozen=True, kw_only=True)
class LogFormat:
    """What the table `log_format` says: `version` is anything if another program wrote it."""

    version: object
    id: str = ""

    def require_readable(self, place: str) -> None:
        """Raise `LogError` unless this build can read and append to such a log."""
        if self.version == FORMAT_VERSION:
            return
        remedy = "use the version that wrote the log"
        if self.version == FORMAT_BEFORE:
            remedy = "start a service of this version on it, which upgrades it"
        raise LogError(
            f"{place} has label log format {self.version}, and this version of Keymatch reads only"
            f" format {FORMAT_VERSION}: {remedy}"
        )


def find_format(connection: sa.Connection) -> LogFormat | None:
    """Return the format of the log that `connection` reaches, None if there is no log."""
    schema = connection.schema_for_object(log_format)
    if not sa.inspect(connection).has_table(log_format.name, schema=schema):
        return None
    version = connection.scalar(sa.select(log_format.c.version))
    if version != FORMAT_VERSION:  # another version need not have the other columns
        return LogFormat(version=version)
    return LogFormat(version=version, id=connection.scalar(sa.select(log_format.c.id)) or "")


def create_log(connection: sa.Connection) -> LogFormat:
    """Create the tables of an empty log; the caller holds the exclusive lock.

    Raises SQLAlchemy's error if a table of such a name exists: it belongs to another program.
    """
    requests.create(connection)
    create_events(connection)
    return create_format(connection, log_id=uuid.uuid4().hex)


def create_events(connection: sa.Connection) -> None:
    """Create the empty table of events with its index."""
    events.create(connection)


def create_format(connection: sa.Connection, *, log_id: str) -> LogFormat:
    """Create the table that says format and id."""
    created = LogFormat(version=FORMAT_VERSION, id=log_id)
    log_format.create(connection)
    row = {"version": created.version, "id": log_id, "cut": 0, "cut_chain": first_chain(log_id)}
    connection.execute(log_format.insert(), row)
    return created

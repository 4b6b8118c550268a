"""The log's tables, format 2: how they are made, and how format 1 becomes format 2.

`events`, one row an event:

| column     | content                                                                      |
|------------|------------------------------------------------------------------------------|
| `sequence` | 1, 2, 3, ... without a gap; the memory's version is its newest event's number  |
| `kind`     | what happened, a name of `EVENT_KINDS`                                        |
| `body`     | JSON: the texts; a new encoder can be applied to them                         |
| `vectors`  | fp16 [n, d] of those texts, row by row, so that a restart need not encode;    |
|            | empty for an event without texts                                             |
| `encoder`  | fingerprint of the encoder that made the vectors                              |
| `checksum` | CRC-32 over all columns above                                                 |
| `written`  | Unix time in seconds                                                          |

`requests`, one row a write that carried an idempotency key, kept for a day:

| column     | content                                                                      |
|------------|------------------------------------------------------------------------------|
| `key`      | the client's idempotency key                                                 |
| `digest`   | of the request, to notice a key that is used for another one                  |
| `version`  | the memory version that holds the write                                      |
| `answer`   | JSON: what the client was told                                               |
| `written`  | Unix time in seconds                                                          |

`log_format`, one row: the format's `version`, and `id`, 32 hexadecimal digits drawn when the log
was created, by which a bundle knows the log that it was written from.

Format 1 had neither `requests` nor `id`, nor the index of events by kind.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass

import sqlalchemy as sa

FORMAT_VERSION = 2
_OLD_VERSION = 1

_schema = sa.MetaData()
log_format = sa.Table(
    "log_format",
    _schema,
    sa.Column("version", sa.Integer, nullable=False),
    sa.Column("id", sa.String(32), nullable=False),
)
events = sa.Table(
    "events",
    _schema,
    sa.Column(
        "sequence",
        sa.BigInteger().with_variant(sa.Integer, "sqlite"),
        primary_key=True,
        autoincrement=False,  # the log gives the numbers; a database's own would leave gaps
    ),
    sa.Column("kind", sa.String(32), nullable=False),
    sa.Column("body", sa.LargeBinary, nullable=False),
    sa.Column("vectors", sa.LargeBinary, nullable=False),
    sa.Column("encoder", sa.String(64), nullable=False),
    sa.Column("checksum", sa.BigInteger, nullable=False),
    sa.Column("written", sa.Double, nullable=False),
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
class Format:
    """What `log_format` says; `id` is empty in format 1. Somebody else's may say anything."""

    version: object
    id: str

    @property
    def current(self) -> bool:
        """Whether this build reads and writes it as it is."""
        return self.version == FORMAT_VERSION

    @property
    def readable(self) -> bool:
        """Whether this build can at least read it."""
        return self.version in (_OLD_VERSION, FORMAT_VERSION)


def find_format(connection: sa.Connection) -> Format | None:
    """The format of the log that `connection` reaches, None where there is no log."""
    schema = connection.schema_for_object(log_format)
    if not sa.inspect(connection).has_table(log_format.name, schema=schema):
        return None
    version = connection.scalar(sa.select(log_format.c.version))
    if version != FORMAT_VERSION:  # another one need not have the column
        return Format(version=version, id="")
    return Format(version=version, id=connection.scalar(sa.select(log_format.c.id)) or "")


def bring_to_current(connection: sa.Connection, found: Format | None) -> Format:
    """Create the log, or migrate format 1; belongs inside the exclusive lock.

    Any other format is returned as it is.
    """
    made = Format(version=FORMAT_VERSION, id=uuid.uuid4().hex)
    if found is None:
        # Not "create what is missing": tables that are already there are somebody else's.
        _schema.create_all(connection, checkfirst=False)
        connection.execute(log_format.insert().values(version=made.version, id=made.id))
        return made
    if found.version == _OLD_VERSION:
        connection.exec_driver_sql(
            "ALTER TABLE log_format ADD COLUMN id VARCHAR(32) NOT NULL DEFAULT ''"
        )
        requests.create(connection, checkfirst=False)
        _events_by_kind.create(connection, checkfirst=False)
        connection.execute(log_format.update().values(version=made.version, id=made.id))
        return made
    return found

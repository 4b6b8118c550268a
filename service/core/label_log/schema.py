"""The tables of the label log, format version 1.

`events`, one row per event:

| column     | content                                                                      |
|------------|------------------------------------------------------------------------------|
| `sequence` | 1, 2, 3, ... without a gap; a view's version is the number of its last event   |
| `kind`     | the kind of write, a key of `CHANGES`                                         |
| `body`     | JSON of the write with its texts, which another encoder can encode again      |
| `vectors`  | fp16 [n, d] of those texts, row by row, so that a restart need not encode     |
|            | them; empty for an event without texts                                        |
| `encoder`  | fingerprint of the encoder that made the vectors                              |
| `checksum` | CRC-32 over all columns above                                                 |
| `written`  | Unix time in seconds                                                          |
| `chain`    | hash over this event and all before it, see `rows.py`                         |

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
"""

from __future__ import annotations

import sqlalchemy as sa

from service.core.errors import LogError

FORMAT_VERSION = 1

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
        autoincrement=False,  # the log numbers events itself, as a database's sequence leaves gaps
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


def find_id(connection: sa.Connection, *, place: str) -> str | None:
    """Return the id of the log, None if there is none; raises `LogError` for another format."""
    schema = connection.schema_for_object(log_format)
    if not sa.inspect(connection).has_table(log_format.name, schema=schema):
        return None
    version = connection.scalar(sa.select(log_format.c.version))
    if version != FORMAT_VERSION:  # another version may not have the other columns
        raise LogError(
            f"{place} has label log format {version}, and this version of Keymatch reads"
            f" only format {FORMAT_VERSION}: use the version that wrote the log"
        )
    return connection.scalar(sa.select(log_format.c.id)) or ""

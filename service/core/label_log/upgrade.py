"""Brings a log of format 1, which had no chain, to the present format, in one transaction."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from service.core.label_log.chain import first_chain, next_chain
from service.core.label_log.rows import PAGE_EVENTS, Row, event_of, gapless_rows
from service.core.label_log.schema import LogFormat, create_events, create_format, events

_OLD = "events_of_format_1"
_NAMES = ("sequence", "kind", "body", "vectors", "encoder", "checksum", "written")


def upgrade(connection: sa.Connection, *, place: str) -> LogFormat:
    """Give each event its chain; the caller holds the exclusive lock.

    A process of an earlier version that still runs on this log can read it and no longer write.
    Raises `LogCorrupt` for an event that is missing or altered, and then nothing must be committed.
    """
    log_id: str = connection.exec_driver_sql("SELECT id FROM log_format").scalar_one()
    for statement in (
        "DROP INDEX events_by_kind",
        f"ALTER TABLE events RENAME TO {_OLD}",
        "DROP TABLE log_format",
    ):
        connection.exec_driver_sql(statement)
    created = create_format(connection, log_id=log_id)
    create_events(connection)
    chain, page = first_chain(log_id), []
    for row in gapless_rows(lambda after: _page(connection, after), after=0, place=place):
        event_of(row, place=place)
        stored = {name: getattr(row, name) for name in _NAMES}
        content = {name: stored[name] for name in _NAMES[:5]}
        chain = next_chain(chain, **content)
        page.append({**stored, "chain": chain})
        if len(page) == PAGE_EVENTS:
            connection.execute(events.insert(), page)
            page = []
    if page:
        connection.execute(events.insert(), page)
    connection.exec_driver_sql(f"DROP TABLE {_OLD}")
    return created


def _page(connection: sa.Connection, after: int) -> Sequence[Row]:
    statement = sa.text(
        f"SELECT {', '.join(_NAMES)} FROM {_OLD}"
        " WHERE sequence > :after ORDER BY sequence LIMIT :limit"
    )
    return connection.execute(statement, {"after": after, "limit": PAGE_EVENTS}).all()

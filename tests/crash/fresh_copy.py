"""A copy of the log for a fresh server process, which has only bundle and log to answer from."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from service.core.label_log import open_log, schema
from tests.support.label_logs import Place
from tests.support.serving import ServerProcess, wait_for

QUERIES = [
    "alpine", "boots camping", "down ember fuel", "glacier hood ice jacket", "kettle", "lamp mat",
    "needle ozone pole", "quilt rope stove tent", "ultra vest", "winter yak zip", "zip", "tent",
    "c0 boots", "c1 lamp", "hiking boots", "running shoes", "gas", "light for a tent", "trail", "x",
]  # fmt: skip


def copied_log(state: Path | str, folder: Path) -> Path:
    """A state folder with a copy of the log and without segments."""
    folder.mkdir()
    if isinstance(state, Path):
        with (
            closing(sqlite3.connect(state / "labels.sqlite")) as source,
            closing(sqlite3.connect(folder / "labels.sqlite")) as target,
        ):
            source.backup(target)
        return folder
    open_log(folder).close()
    with _tables(Place(state)) as source, _tables(Place(folder)) as target:
        for table in (schema.log_format, schema.events, schema.requests):
            rows = [dict(row._mapping) for row in source.execute(sa.select(table))]
            target.execute(table.delete())
            if rows:
                target.execute(table.insert(), rows)
    return folder


def answers(server: ServerProcess, version: int) -> Any:
    """The answers to a fixed set of queries, to the last bit, once all full blocks are sealed, and
    the counts of rows and segments, on which approximate answers depend.

    Where there are items, also the answers with some of them given, and with none.
    """
    wait_for(lambda: _settled(server, version))
    body = {
        "queries": QUERIES,
        "top_k": 50,
        "depth": 200,
        "explain": True,
        "deadline_ms": 60_000,
    }
    info = server.client.get("/info").json()
    bodies = [body]
    if "items" in info["bundle"]:
        bodies += [{**body, "items": items} for items in ([*items_of(server)][:5], [])]
    results = []
    for asked in bodies:
        answer = server.client.post("/predict", json=asked)
        assert answer.status_code == 200, answer.text
        assert answer.json()["version"] == version
        results.append(answer.json()["results"])
    return results, info["memory"]


def items_of(server: ServerProcess) -> dict[str, str]:
    """All items that a server shows, texts by id; none for a bundle without an item memory."""
    answer = server.client.get("/items", params={"limit": 1000})
    if answer.status_code == 422:
        assert "no item memory" in answer.text
        return {}
    return {item["id"]: item["text"] for item in answer.json()["items"]}


def _settled(server: ServerProcess, version: int) -> bool:
    info = server.client.get("/info").json()
    return info["version"] == version and info["memory"]["unsealed_segments"] == 0


@contextmanager
def _tables(place: Place) -> Iterator[sa.Connection]:
    engine = sa.create_engine(place._url())
    try:
        with engine.begin() as connection:
            yield connection
    finally:
        engine.dispose()

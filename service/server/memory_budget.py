"""The budget of main memory: adds up the most that each growing part takes, at the start.

The rest of the service enforces each part's limit. Their sum must fit into `memory_bytes`: an error
at the start loses no requests, but a service killed for its memory loses all in progress.
service/how-it-works.md has the same table.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

from service.core.bundle.bundle import PART_SEGMENT
from service.core.bundle.manifest import Manifest
from service.core.errors import InvalidConfig
from service.core.index.frozen_segment import MOST_COPIED
from service.core.memory.filtered_view import KEPT_FILTERS
from service.core.processes.resources import memory_limit
from service.http.endpoint import PIECE_BYTES
from service.http.request_body import SMALL_BYTES
from service.server.connection import READ_BYTES
from service.settings import Settings

# `python -m loadtests.attacks` compares the sum of all shares with the memory of the processes.
# A worker with libraries and threads, a child process, a supervisor: the demo's, rounded up.
WORKER_BYTES, CHILD_BYTES, SUPERVISOR_BYTES = 200_000_000, 100_000_000, 110_000_000
# A worker's child processes that do not encode: two build graphs, one writes a snapshot.
OTHER_CHILDREN = 3
OBJECT_BYTES = 16_384  # Python objects of a connection, its request and its header fields
ENTRY_BYTES = 1_024  # a text with its objects, without its vector
HELD_TWICE = 2  # as bytes and as Python objects
GRAPHS = 2  # of the bundle's rows: the one being rebuilt, and the mapped one
MEMORIES = 2  # two exist during a reload, or while segments are merged
MOST_LIVE_BYTES, LEAST_LIVE_BYTES = 4 * 1024**3, 64 * 1024**2  # bounds of a worker's default

log = logging.getLogger("keymatch")


@dataclass(frozen=True, kw_only=True)
class Share:
    """A part of the budget, in bytes of all workers. `setting` bounds it; "" if none does."""

    name: str
    setting: str
    size: int


def shares(settings: Settings, bundle: Manifest) -> list[Share]:
    """Return all shares of the budget; the live memory's is 0 until `live_bytes` is set."""
    limits, engine, server = settings.limits, settings.engine, settings.server
    files = sum(facts.bytes for facts in bundle.files.values())
    index = sum(facts.bytes for name, facts in bundle.files.items() if name.endswith(PART_SEGMENT))
    graphs = sum(facts.bytes for name, facts in bundle.files.items() if name.endswith(".onnx"))
    children = (engine.threads + OTHER_CHILDREN) * CHILD_BYTES + (engine.threads + 1) * graphs
    entry = ENTRY_BYTES + 4 * bundle.encoder.dimension
    connection = READ_BYTES + server.header_bytes + SMALL_BYTES + PIECE_BYTES + OBJECT_BYTES
    most_connections = server.connections + server.probe_connections
    of_a_worker = (
        ("processes", "engine.threads", WORKER_BYTES + children),
        ("connections", "server.connections", most_connections * connection),
        ("requests", "limits.held_bytes", HELD_TWICE * limits.held_bytes),
        ("query cache", "engine.cached_queries", engine.cached_queries * entry),
        ("filters", "", _bytes_of_filters(bundle)),
        ("writes", "engine.queue_labels", engine.queue_labels * entry),
        ("live memory", "engine.live_bytes", MEMORIES * (engine.live_bytes or 0)),
    )
    supervisor = SUPERVISOR_BYTES if server.workers > 1 else 0
    return [
        Share(name="bundle", setting="", size=files),
        Share(name="rebuilt graph", setting="", size=GRAPHS * index),
        Share(name="supervisor", setting="", size=supervisor),
        *(
            Share(name=name, setting=setting, size=server.workers * size)
            for name, setting, size in of_a_worker
        ),
    ]


def _bytes_of_filters(bundle: Manifest) -> int:
    """Return the bytes of the filters that a memory keeps, for the bundle's rows and labels."""
    memory = bundle.memory
    kept = KEPT_FILTERS * (memory.rows + memory.labels)  # a boolean for each
    voters = 4 * memory.votes + 8 * memory.labels
    return kept + voters + MOST_COPIED * 2 * bundle.encoder.dimension


def within_budget(settings: Settings, bundle: Manifest) -> Settings:
    """Return the settings with `memory_bytes` and `live_bytes` filled in.

    If the shares exceed the memory, this raises `InvalidConfig`, or only logs the excess if neither
    of the two was set.
    """
    engine, server = settings.engine, settings.server
    memory = server.memory_bytes or memory_limit()
    without_live = replace(settings, engine=replace(engine, live_bytes=None))
    others = sum(share.size for share in shares(without_live, bundle))
    left = (memory - others) // (MEMORIES * server.workers)
    live = engine.live_bytes or min(MOST_LIVE_BYTES, max(LEAST_LIVE_BYTES, left))
    decided = replace(
        settings,
        engine=replace(engine, live_bytes=live),
        server=replace(server, memory_bytes=memory),
    )
    parts = shares(decided, bundle)
    total = sum(share.size for share in parts)
    log.info(
        "memory budget",
        extra={"allowed": memory, "sum": total, **{part.name: part.size for part in parts}},
    )
    if total > memory:
        told = _excess(total, memory, left, parts)
        if server.memory_bytes or engine.live_bytes:
            raise InvalidConfig(told)
        log.warning(told)
    return decided


def _excess(total: int, memory: int, left: int, parts: list[Share]) -> str:
    """Describe the excess, and which setting to lower."""
    if left >= LEAST_LIVE_BYTES:
        advice = f"lower engine.live_bytes to at most {left}"
    else:
        others = [share for share in parts if share.setting not in ("", "engine.live_bytes")]
        largest = max(others, key=lambda share: share.size)
        advice = f"lower {largest.setting}, whose share is {largest.size}"
    return (
        f"the memory that the settings allow adds up to {total} bytes, and {memory} may be taken"
        f" (server.memory_bytes): {advice}, or raise server.memory_bytes where there is more"
    )

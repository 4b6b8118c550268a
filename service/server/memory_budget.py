"""One budget of main memory: what everything that can grow takes at most, added up at the start.

Each part has a limit of its own, which the rest of the service holds. Here they are shares of one
sum, which must fit into `memory_bytes`: a service that the system ends for its memory loses every
request in progress, a sentence at the start loses none. service/README.md has the same table.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

from service.core.bundle.manifest import Manifest
from service.core.errors import InvalidConfig
from service.core.processes.memory_limit import memory_limit
from service.http.request_body import SMALL_BYTES
from service.http.responses import PIECE_BYTES
from service.server.bounded_connection import READ_BYTES
from service.settings import Settings

# A worker with its libraries and threads, a child process, a supervisor: the demo's, rounded up.
WORKER_BYTES, CHILD_BYTES, SUPERVISOR_BYTES = 200_000_000, 100_000_000, 110_000_000
OTHER_CHILDREN = 2  # of a worker, beside those that encode: one that seals, one for a snapshot
OBJECT_BYTES = 16_384  # of a connection, of its request and of its header's fields
ENTRY_BYTES = 1_024  # of a text with its objects, beside its vector
HELD_TWICE = 2  # as bytes, and as the objects that they are parsed into or made from
MEMORIES = 2  # while a reload has two, or while the rows of segments are merged
MOST_LIVE_BYTES, LEAST_LIVE_BYTES = 4 * 1024**3, 64 * 1024**2  # of a worker, by default

log = logging.getLogger("keymatch")


@dataclass(frozen=True, kw_only=True)
class Share:
    """A part of the budget, in bytes of all workers; `setting` lowers it, "" if none does."""

    name: str
    setting: str
    size: int


def shares(settings: Settings, bundle: Manifest) -> list[Share]:
    """All shares of the budget; that of the live memory is 0 while it is not decided."""
    limits, engine, server = settings.limits, settings.engine, settings.server
    files = sum(facts.bytes for facts in bundle.files.values())
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
        ("writes", "engine.queue_labels", engine.queue_labels * entry),
        ("live memory", "engine.live_bytes", MEMORIES * (engine.live_bytes or 0)),
    )
    supervisor = SUPERVISOR_BYTES if server.workers > 1 else 0
    return [
        Share(name="bundle", setting="", size=files),
        Share(name="supervisor", setting="", size=supervisor),
        *(
            Share(name=name, setting=setting, size=server.workers * size)
            for name, setting, size in of_a_worker
        ),
    ]


def within_budget(settings: Settings, bundle: Manifest) -> Settings:
    """The settings with `memory_bytes` and `live_bytes`, where they are not set.

    Raises `InvalidConfig` if one of the two is set and the shares add up to more than there is.
    Where neither is set, the service starts all the same, and says so in its log.
    """
    engine, server = settings.engine, settings.server
    memory = server.memory_bytes or memory_limit()
    others = sum(share.size for share in shares(replace_live(settings, None), bundle))
    left = (memory - others) // (MEMORIES * server.workers)
    live = engine.live_bytes or min(MOST_LIVE_BYTES, max(LEAST_LIVE_BYTES, left))
    decided = replace_live(settings, live)
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
    return replace(decided, server=replace(server, memory_bytes=memory))


def replace_live(settings: Settings, live_bytes: int | None) -> Settings:
    """The settings with another `live_bytes`."""
    return replace(settings, engine=replace(settings.engine, live_bytes=live_bytes))


def _excess(total: int, memory: int, left: int, parts: list[Share]) -> str:
    """What is too much, and which setting to lower."""
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

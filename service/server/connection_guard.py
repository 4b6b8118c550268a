"""Limits one worker's connections, and ends some of them to make room for others.

A client that connects and sends little occupies a file descriptor, and nothing else would end its
connection. So each connection has a deadline while it waits for its client. One sweep per second
checks all deadlines, which costs less than a timer per request.

At `connections`, those with the nearest deadline end, so idle clients never keep new ones out. A
connection that is sending a header is due before one that is idle between two requests. If the
service is at work for all connections, a few more are accepted for probes only.
"""

from __future__ import annotations

import logging
import math
import resource
from asyncio import TimerHandle, get_running_loop
from heapq import nsmallest
from typing import TYPE_CHECKING

from prometheus_client import Gauge

from service.settings import ServerSettings

if TYPE_CHECKING:
    from service.server.connection import ServiceConnection

SWEEP_SECONDS = 1.0  # between two sweeps; a connection may end this much after its deadline
SPARE_DESCRIPTORS = 128  # file descriptors for label log, segments, child processes and bundle
AT_ONCE = 64  # when room is needed, 1 in so many connections ends: searching is rare

log = logging.getLogger("keymatch")


class ConnectionGuard:
    """Counts one worker's connections, and ends late ones. For its event loop."""

    def __init__(self, settings: ServerSettings, gauge: Gauge | None = None) -> None:
        """Raise this process's limit of open files if the settings need more.

        `gauge` shows the number of connections.
        """
        self.settings, self._gauge = settings, gauge
        self.most = _affordable(settings)
        self._open: set[ServiceConnection] = set()
        self._timer: TimerHandle | None = None

    @property
    def crowded(self) -> bool:
        """Return whether the newest connection may only probe."""
        return len(self._open) > self.most

    @property
    def full(self) -> bool:
        """Return whether no connection, not even a probe, can be accepted."""
        return len(self._open) > self.most + self.settings.probe_connections

    def enter(self, connection: ServiceConnection) -> None:
        """Count a new connection, and make room for it if necessary."""
        self._open.add(connection)
        if self.crowded:
            self._make_room()
        self._show()
        if self._timer is None:
            self._timer = get_running_loop().call_later(SWEEP_SECONDS, self._sweep)

    def leave(self, connection: ServiceConnection) -> None:
        """Count a connection that has ended."""
        self._open.discard(connection)
        self._show()

    def _show(self) -> None:
        if self._gauge is not None:
            self._gauge.set(len(self._open))

    def _make_room(self) -> None:
        waiting = [one for one in self._open if one.deadline < math.inf]
        for connection in nsmallest(1 + self.most // AT_ONCE, waiting, key=lambda c: c.deadline):
            self._open.discard(connection)
            connection.drop()

    def _sweep(self) -> None:
        loop = get_running_loop()
        now = loop.time()
        for connection in tuple(self._open):
            connection.check(now)
        self._timer = loop.call_later(SWEEP_SECONDS, self._sweep) if self._open else None


def _affordable(settings: ServerSettings) -> int:
    """Return how many connections the limit of open files allows, at most `settings.connections`.

    A process without a free descriptor resets every new connection, even a probe's.
    """
    beside = settings.probe_connections + SPARE_DESCRIPTORS
    needed = settings.connections + beside
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if resource.RLIM_INFINITY != soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return settings.connections
    most = max(1, soft - beside)
    log.warning(
        "the limit of open files allows fewer connections than are configured",
        extra={"open_files": soft, "connections": most, "configured": settings.connections},
    )
    return most

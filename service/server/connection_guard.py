"""How many connections one worker holds, and which of them end to make room for others.

A client that connects and then says little costs the service a descriptor, and nothing else would
end its connection. So each connection has a deadline while the next step is its client's, and one
sweep a second looks at all of them, which costs less than a timer for each request.

At `connections` those whose deadline is nearest end, so new clients come in however many others
only hold on: a connection that is sending a header is due before one that is idle between two
requests. Where the service is at work for all of them, a few more are let in for probes alone.
"""

from __future__ import annotations

import logging
import math
import resource
from asyncio import TimerHandle, get_running_loop
from heapq import nsmallest
from typing import Protocol

from prometheus_client import Gauge

from service.settings import ServerSettings

SWEEP_SECONDS = 1.0  # so much later than its deadline a connection may end
SPARE_DESCRIPTORS = 128  # for the label log, segments, child processes and the bundle
AT_ONCE = 64  # one connection of so many ends when room is needed, so that looking for them is rare

log = logging.getLogger("keymatch")


class Guarded(Protocol):
    """A connection as its guard sees it."""

    @property
    def deadline(self) -> float:
        """When it ends by the loop's clock, unless its client takes the next step before."""

    def check(self, now: float) -> None:
        """End it if it is late."""

    def drop(self) -> None:
        """End it to make room."""


class ConnectionGuard:
    """Counts the connections of one worker and ends those that are late; for its event loop."""

    def __init__(self, settings: ServerSettings, gauge: Gauge | None = None) -> None:
        """Raise this process's limit of open files to what the settings need, where it is lower.

        `gauge` shows how many connections there are.
        """
        self.settings, self._gauge = settings, gauge
        self.most = _affordable(settings)
        self._open: set[Guarded] = set()
        self._timer: TimerHandle | None = None

    @property
    def crowded(self) -> bool:
        """Whether the newest connection is for probes alone."""
        return len(self._open) > self.most

    @property
    def full(self) -> bool:
        """Whether not even a probe can be taken."""
        return len(self._open) > self.most + self.settings.probe_connections

    def enter(self, connection: Guarded) -> None:
        """Count a new connection, and make room for it where there is none."""
        self._open.add(connection)
        if self.crowded:
            self._make_room()
        self._show()
        if self._timer is None:
            self._timer = get_running_loop().call_later(SWEEP_SECONDS, self._sweep)

    def leave(self, connection: Guarded) -> None:
        """A connection has ended."""
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
    """How many connections the limit of open files allows, at most `settings.connections`.

    A process that has no descriptor left resets every new connection, those of probes included.
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

"""Waiting for a published view: how `min_version` gives read-your-writes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable


class Publication:
    """Coroutines that wait for a view are woken from the writer's thread."""

    def __init__(self) -> None:
        self._waiters: dict[asyncio.Event, asyncio.AbstractEventLoop] = {}
        self._lock = threading.Lock()

    def announce(self) -> None:
        """A new view is there."""
        with self._lock:
            waiters = list(self._waiters.items())
        for event, loop in waiters:
            loop.call_soon_threadsafe(event.set)

    async def wait(self, reached: Callable[[], bool]) -> None:
        """Return once `reached()`; looked at now and after each announcement."""
        if reached():
            return
        event = asyncio.Event()
        with self._lock:
            self._waiters[event] = asyncio.get_running_loop()
        try:
            while not reached():
                await event.wait()
                event.clear()
        finally:
            with self._lock:
                del self._waiters[event]

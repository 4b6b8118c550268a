"""Waiting for a view of at least `min_version`: how a client reads its own write on any replica."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable


class ViewWaiters:
    """Coroutines that wait for a view; the writer's thread wakes them.

    asyncio.Condition and anyio's events wake only coroutines of their own thread.
    """

    def __init__(self) -> None:
        self._waiters: dict[asyncio.Event, asyncio.AbstractEventLoop] = {}
        self._lock = threading.Lock()

    def notify(self) -> None:
        """Say that there is a new view; called from any thread."""
        with self._lock:
            waiters = list(self._waiters.items())
        for event, loop in waiters:
            loop.call_soon_threadsafe(event.set)

    async def wait(self, reached: Callable[[], bool]) -> None:
        """Return once `reached()` is true; it is called now and after each new view."""
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

"""Waiting for a view of at least `min_version`: how a client reads its own write on any replica."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from service.core.errors import ClientLeft
from service.engine.reading.query_request import Client


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Waiter:
    """One coroutine that waits, and who reads its answer."""

    loop: asyncio.AbstractEventLoop
    client: Client | None
    wake: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def left(self) -> bool:
        """Whether nobody reads the answer any more."""
        return self.client is not None and self.client.left


class ViewWaiters:
    """Coroutines of one event loop that wait for a view; the writer's thread wakes them.

    asyncio.Condition and anyio's events wake only coroutines of their own thread.
    """

    def __init__(self) -> None:
        self._waiters: set[_Waiter] = set()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._waiters)

    def notify(self) -> None:
        """Say that there is a new view; called from any thread."""
        with self._lock:
            waiters = list(self._waiters)
        for waiter in waiters:
            waiter.loop.call_soon_threadsafe(waiter.wake.set)

    async def wait(self, reached: Callable[[], bool], *, client: Client | None = None) -> None:
        """Return once `reached()` is true; it is called now and after each new view.

        Raises `ClientLeft` soon after `client` has left.
        """
        if reached():
            return
        waiter = _Waiter(loop=asyncio.get_running_loop(), client=client)
        with self._lock:
            self._waiters.add(waiter)
        if client is not None:
            client.on_leave = waiter.wake.set
        try:
            while not reached():
                if waiter.left:
                    raise ClientLeft("the client disconnected before the memory was new enough")
                await waiter.wake.wait()
                waiter.wake.clear()
        finally:
            with self._lock:
                self._waiters.remove(waiter)
            if client is not None:
                client.on_leave = None

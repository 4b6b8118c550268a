"""The event loop of one of several workers, which leaves connections to the others.

All workers accept from one socket. A client often opens many connections at once, and a worker that
is awake accepts most of them before another one is. So each pauses after it has accepted one.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Any

import uvloop

PAUSE_SECONDS = 0.001  # after a connection: a loop wakes up in a tenth of this
FAILED_SECONDS = 0.1  # after an error, such as too many open files

log = logging.getLogger("keymatch")


class SharingLoop(uvloop.Loop):
    """uvloop's loop, with servers that share their socket fairly."""

    async def create_server(  # type: ignore[override]
        self, protocol_factory: Callable[[], asyncio.Protocol], *, sock: socket.socket, **_: Any
    ) -> SharingServer:
        """Serve a listening socket that other processes accept from, too."""
        return SharingServer(self, protocol_factory, sock)


class SharingServer:
    """Accepts connections one by one until it is closed; has what uvicorn uses of a server."""

    def __init__(
        self,
        loop: SharingLoop,
        protocol_factory: Callable[[], asyncio.Protocol],
        sock: socket.socket,
    ) -> None:
        """Begin to accept."""
        sock.setblocking(False)
        self._loop, self._protocol_factory = loop, protocol_factory
        self._accepting = loop.create_task(self._accept(sock))

    def close(self) -> None:
        """Accept no further connection."""
        self._accepting.cancel()

    def is_serving(self) -> bool:
        """Return whether connections are accepted."""
        return not self._accepting.done()

    async def wait_closed(self) -> None:
        """Wait until no connection is accepted any more."""
        await asyncio.wait([self._accepting])

    async def _accept(self, sock: socket.socket) -> None:
        while True:
            try:
                connection, _ = await self._loop.sock_accept(sock)
                connected = self._loop.connect_accepted_socket(self._protocol_factory, connection)
                await asyncio.shield(connected)  # a stop must not lose an accepted connection
                await asyncio.sleep(PAUSE_SECONDS)
            except Exception as error:  # whatever it is, later connections must be accepted
                log.warning("a connection could not be accepted", extra={"cause": repr(error)})
                await asyncio.sleep(FAILED_SECONDS)

"""A connection's transport that takes no bytes once the connection has ended.

uvicorn tells the newest request of a connection that its client has left. Where a client sent
several at once, the one in progress goes on with its answer; uvloop raises a RuntimeError for each
write, which would count as a defect of this service.
"""

from __future__ import annotations

import asyncio
from typing import Any


class LivingTransport:
    """All of a transport, but that writing to a connection that is ending does nothing."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport

    def write(self, data: bytes) -> None:
        """Send bytes, if there is still somebody to send them to."""
        if not self._transport.is_closing():
            self._transport.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

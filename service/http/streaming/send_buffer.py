"""Answers that wait to be sent to a client that reads them late, or never.

Most clients send their whole request before they read a byte of the answer. If the server waited
for them to read, it would stop reading itself, and both would wait for ever.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from starlette.types import Message, Send

from service.http.large.held_bytes import Hold

FREE_BYTES = 262_144  # of a stream's answers, which are part of what it holds from its start
_PIECE_BYTES = 65_536


class SendBuffer:
    """Takes bytes without waiting, and sends them as fast as the client reads.

    Bounded by bytes, with a limit on how long the client may read nothing; a queue of the standard
    library or of anyio bounds the number of items.
    """

    def __init__(
        self, send: Send, *, start: Message, limit: int, patience: float, hold: Hold
    ) -> None:
        """`start` is sent before the first byte.

        The buffer is full with `limit` bytes, or with `FREE_BYTES` while all requests hold as much
        as they may; what is beyond these counts in `hold`. After `patience` seconds in which the
        client read nothing, `room` and `finish` raise.
        """
        self._send, self._start = send, start
        self._limit, self._patience, self._hold = limit, patience, hold
        self._pieces: deque[bytes] = deque()
        self._held_bytes = 0
        self._started = self._ended = self._sent = False
        self._written, self._progressed = asyncio.Event(), asyncio.Event()

    def write(self, content: bytes) -> None:
        """Add bytes, also beyond the limit: the caller waits for `room` before each write."""
        for place in range(0, len(content), _PIECE_BYTES):
            self._pieces.append(content[place : place + _PIECE_BYTES])
        self._hold_bytes(self._held_bytes + len(content))
        self._written.set()

    async def room(self) -> None:
        """Wait while the buffer is full; raises `TimeoutError` once the patience is over."""
        crowded_limit = min(self._limit, FREE_BYTES)
        await self._until(
            lambda: self._held_bytes < (crowded_limit if self._hold.crowded else self._limit)
        )

    async def finish(self) -> None:
        """End the answer and wait until it is sent; raises `TimeoutError` as `room` does."""
        self._ended = True
        self._written.set()
        await self._until(lambda: self._sent)

    async def run(self) -> None:
        """Send written pieces to the client until the answer is complete; run it as a task."""
        while self._pieces or not self._ended:
            if self._pieces:
                piece = self._pieces.popleft()
                await self._send_body(piece, more_body=True)
                self._hold_bytes(self._held_bytes - len(piece))
                self._progressed.set()
            else:
                self._written.clear()
                await self._written.wait()
        await self._send_body(b"", more_body=False)
        self._sent = True
        self._progressed.set()

    def _hold_bytes(self, size: int) -> None:
        counted = max(0, self._held_bytes - FREE_BYTES)
        self._held_bytes = size
        change = max(0, size - FREE_BYTES) - counted
        if change:
            self._hold.count(change)

    async def _send_body(self, body: bytes, *, more_body: bool) -> None:
        if not self._started:
            self._started = True
            await self._send(self._start)
        await self._send({"type": "http.response.body", "body": body, "more_body": more_body})

    async def _until(self, reached: Callable[[], bool]) -> None:
        while not reached():
            self._progressed.clear()
            async with asyncio.timeout(self._patience):
                await self._progressed.wait()

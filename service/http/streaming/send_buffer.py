"""Answers on their way to a client that may read them late, or never.

Most clients send all of a request before they read a byte of its answer. A server that waited
for them to read would stop reading itself, and both would wait for ever.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from starlette.types import Message, Send

_PIECE_BYTES = 65_536


class AnswerBuffer:
    """Takes bytes without waiting, and sends them as fast as the client reads."""

    def __init__(self, send: Send, *, start: Message, limit: int, patience: float) -> None:
        """`start` is sent before the first byte; `limit` is in bytes, `patience` in seconds."""
        self._send, self._start = send, start
        self._limit, self._patience = limit, patience
        self._pieces: deque[bytes] = deque()
        self._held = 0
        self._started = self._ended = self._sent = False
        self._arrived, self._moved = asyncio.Event(), asyncio.Event()

    def write(self, content: bytes) -> None:
        """Add bytes; how many is bounded by a caller that waits for `room` first."""
        for place in range(0, len(content), _PIECE_BYTES):
            self._pieces.append(content[place : place + _PIECE_BYTES])
        self._held += len(content)
        self._arrived.set()

    async def room(self) -> None:
        """Wait while the buffer is full; raises `TimeoutError` when nothing moves any more."""
        await self._until(lambda: self._held < self._limit)

    async def finish(self) -> None:
        """End the answer and wait until it is sent; raises `TimeoutError` as `room` does."""
        self._ended = True
        self._arrived.set()
        await self._until(lambda: self._sent)

    async def run(self) -> None:
        """Send what is written; a task of its own, over once the answer is sent whole."""
        while self._pieces or not self._ended:
            if self._pieces:
                piece = self._pieces.popleft()
                await self._send_body(piece, more_body=True)
                self._held -= len(piece)
                self._moved.set()
            else:
                self._arrived.clear()
                await self._arrived.wait()
        await self._send_body(b"", more_body=False)
        self._sent = True
        self._moved.set()

    async def _send_body(self, body: bytes, *, more_body: bool) -> None:
        if not self._started:
            self._started = True
            await self._send(self._start)
        await self._send({"type": "http.response.body", "body": body, "more_body": more_body})

    async def _until(self, reached: Callable[[], bool]) -> None:
        while not reached():
            self._moved.clear()
            async with asyncio.timeout(self._patience):
                await self._moved.wait()

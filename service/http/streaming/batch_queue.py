"""The queue between reading a stream and applying it: it holds at most one batch.

Bounded by lines and by bytes, and read a batch at a time after a short wait, which neither
`asyncio.Queue` nor anyio's memory streams can do: both count items only, and hand out single ones.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass

from service.core.types import NewLabel
from service.http.problems import Problem

BATCH_SECONDS = 0.02  # the longest that a line waits for others to be committed with


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """A line that was read: its label, or the problem for which it has none.

    `line` is its number, `size` its length in bytes, `held` what its stream's hold counts for it.
    """

    line: int
    size: int
    held: int = 0
    label: NewLabel | None = None
    problem: Problem | None = None


class BatchQueue:
    """For one task that puts and one task that takes, on the same event loop."""

    def __init__(self, *, lines: int, size: int) -> None:
        """A batch is full once it has this many lines or `size` bytes."""
        self._lines, self._size = lines, size
        self._entries: list[Entry] = []
        self._held_bytes = 0
        self._oldest = 0.0  # loop time at which the oldest entry was put
        self._ended = False
        self.closed = False
        self._arrived, self._full, self._room = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._room.set()

    @property
    def finished(self) -> bool:
        """Whether the queue is empty and stays empty."""
        return self._ended and not self._entries

    async def put(self, entry: Entry) -> None:
        """Add a line, after waiting while the batch is full; a closed queue drops the line."""
        await self._room.wait()
        if self.closed:
            return
        if not self._entries:
            self._oldest = asyncio.get_running_loop().time()
        self._entries.append(entry)
        self._held_bytes += entry.size
        self._arrived.set()
        if len(self._entries) >= self._lines or self._held_bytes >= self._size:
            self._full.set()
            self._room.clear()

    async def take(self, *, within: float) -> list[Entry]:
        """The next batch: full, or the lines of `BATCH_SECONDS`; empty if none came `within` s.

        `BATCH_SECONDS` count from the oldest line on. From the newest on, a client that sends a
        line every few milliseconds would keep the first one waiting for ever.
        """
        await _wait(self._arrived, within)
        if self._entries:
            waited = asyncio.get_running_loop().time() - self._oldest
            await _wait(self._full, BATCH_SECONDS - waited)
        batch, self._entries, self._held_bytes = self._entries, [], 0
        if not self._ended:
            self._arrived.clear()
            self._full.clear()
            self._room.set()
        return batch

    def end(self) -> None:
        """Declare that no further line comes; the lines in the queue can still be taken."""
        self._ended = True
        for event in (self._arrived, self._full, self._room):
            event.set()

    def close(self) -> None:
        """Drop all lines in the queue, and all that come."""
        self.closed = True
        self._entries = []
        self.end()


async def _wait(event: asyncio.Event, seconds: float) -> None:
    """Return once the event is set, or after `seconds`."""
    if not event.is_set() and seconds > 0:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await event.wait()

"""Lines of a stream that were read and wait to be applied: one batch, then the reader waits."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from service.core.types import NewLabel

BATCH_SECONDS = 0.02  # the most that a line waits for others to share its commit


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """A line that was read: its label, or the problem document that says why it has none.

    `size` is in bytes, as it came.
    """

    line: int
    size: int
    label: NewLabel | None = None
    problem: dict[str, Any] | None = None


class Backlog:
    """Between one reader and one taker on the same event loop."""

    def __init__(self, *, lines: int, size: int) -> None:
        """A batch is full with this many lines, or once they have `size` bytes."""
        self._lines, self._size = lines, size
        self._entries: list[Entry] = []
        self._held = 0
        self._first = 0.0  # when the oldest entry came
        self._ended = False
        self.closed = False
        self._arrived, self._full, self._room = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._room.set()

    @property
    def over(self) -> bool:
        """Whether nothing waits and nothing will come."""
        return self._ended and not self._entries

    async def put(self, entry: Entry) -> None:
        """Add a line once there is room; a closed backlog forgets it."""
        await self._room.wait()
        if self.closed:
            return
        if not self._entries:
            self._first = asyncio.get_running_loop().time()
        self._entries.append(entry)
        self._held += entry.size
        self._arrived.set()
        if len(self._entries) >= self._lines or self._held >= self._size:
            self._full.set()
            self._room.clear()

    async def take(self, *, within: float) -> list[Entry]:
        """A full batch, or what came in `BATCH_SECONDS`; nothing where none came `within` seconds.

        The clock starts with the oldest line: lines that trickle in faster than that would
        otherwise keep the first one waiting.
        """
        await _either(self._arrived, within)
        if self._entries:
            waited = asyncio.get_running_loop().time() - self._first
            await _either(self._full, BATCH_SECONDS - waited)
        batch, self._entries, self._held = self._entries, [], 0
        if not self._ended:
            self._arrived.clear()
            self._full.clear()
            self._room.set()
        return batch

    def end(self) -> None:
        """Nothing further comes; what waits is still taken."""
        self._ended = True
        for event in (self._arrived, self._full, self._room):
            event.set()

    def close(self) -> None:
        """Forget what waits, and whatever comes."""
        self.closed = True
        self._entries = []
        self.end()


async def _either(event: asyncio.Event, seconds: float) -> None:
    """Wait for the event or for the time to pass."""
    if not event.is_set() and seconds > 0:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await event.wait()

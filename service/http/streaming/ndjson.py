"""Newline-delimited JSON: splits bytes, which arrive in pieces of any size, into lines."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """A line that is not blank; `number` counts from 1, `content` is None if it was too long."""

    number: int
    content: bytes | None


async def read_lines(chunks: AsyncIterator[bytes], *, limit: int) -> AsyncIterator[Line]:
    """The lines of a stream; at most one chunk and `limit` bytes are held in memory.

    A longer line has no content. Blank lines are counted and left out; a byte order mark before the
    first line is dropped. If `chunks` raises, the incomplete last line is not returned.
    """
    splitter = _Splitter(limit)
    async for chunk in chunks:
        for line in splitter.feed(chunk):
            yield line
    for line in splitter.finish():
        yield line


class _Splitter:
    """Keeps the beginning of the line that continues in the next chunk."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._number = 0
        self._kept: bytearray | None = bytearray()  # None: the line is too long, skip the rest

    def feed(self, chunk: bytes) -> Iterator[Line]:
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            self._keep(end)
            yield from self.finish()
        self._keep(rest)

    def finish(self) -> Iterator[Line]:
        """End the present line; yields it unless it is blank."""
        kept, self._kept = self._kept, bytearray()
        self._number += 1
        if kept is None:
            yield Line(number=self._number, content=None)
            return
        content = bytes(kept.removeprefix(_BYTE_ORDER_MARK) if self._number == 1 else kept)
        if content.strip(b" \t\r"):
            yield Line(number=self._number, content=content)

    def _keep(self, part: bytes) -> None:
        if self._kept is None:
            return
        if len(self._kept) + len(part) > self._limit:
            self._kept = None
        else:
            self._kept += part

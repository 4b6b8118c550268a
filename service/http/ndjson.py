"""Newline-delimited JSON: splits a stream of bytes, in chunks of any size, into lines."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

from service.http.request_body import Hold

FREE_BYTES = 16_384  # a line of at most this size is not counted
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_BLANK_LINES = re.compile(rb"[ \t\r\n]*\n")


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """A line that is not blank."""

    number: int  # from 1
    content: bytes | None  # None: it was too long
    crowded: bool = False  # whether it exceeded the memory that all requests share
    held: int = 0  # bytes counted in the stream's reservation until the line's owner releases them


async def read_lines(
    chunks: AsyncIterator[bytes], *, limit: int, hold: Hold
) -> AsyncIterator[Line]:
    """Yield the lines of a stream; at most one chunk and `limit` bytes are held in memory.

    A line of more than `FREE_BYTES` counts in `hold`. A line has no content if it is longer than
    `limit` or if `hold` refuses it. Blank lines are counted and left out; a byte order mark before
    the first line is dropped. If `chunks` raises, the incomplete last line is not yielded.
    """
    splitter = _Splitter(limit, hold)
    async for chunk in chunks:
        for line in splitter.feed(chunk):
            yield line
    for line in splitter.finish():
        yield line


class _Splitter:
    """Splits chunks into lines, and keeps an incomplete line for the next chunk."""

    def __init__(self, limit: int, hold: Hold) -> None:
        self._limit, self._hold = limit, hold
        self._number = self._held = 0
        self._crowded = False
        self._kept: bytearray | None = bytearray()  # None: the line is too long, skip the rest

    def feed(self, chunk: bytes) -> Iterator[Line]:
        start = 0
        while start < len(chunk):
            if self._kept is not None and not self._kept:
                start = self._skip_blank(chunk, start)
            end = chunk.find(b"\n", start)
            if end < 0:
                self._keep(chunk[start:])
                return
            self._keep(chunk[start:end])
            yield from self.finish()
            start = end + 1

    def _skip_blank(self, chunk: bytes, start: int) -> int:
        """Count the blank lines from `start` on; returns where the next line begins."""
        blank = _BLANK_LINES.match(chunk, start)
        if blank is None:
            return start
        self._number += chunk.count(b"\n", start, blank.end())
        return blank.end()

    def finish(self) -> Iterator[Line]:
        """End the last line; yields it unless it is blank."""
        kept, self._kept = self._kept, bytearray()
        held, self._held = self._held, 0
        crowded, self._crowded = self._crowded, False
        self._number += 1
        if kept is None:
            yield Line(number=self._number, content=None, crowded=crowded)
            return
        content = bytes(kept.removeprefix(_BYTE_ORDER_MARK) if self._number == 1 else kept)
        if content.strip(b" \t\r"):
            yield Line(number=self._number, content=content, held=held)
        elif held:
            self._hold.count(-held)

    def _keep(self, part: bytes) -> None:
        if self._kept is None:
            return
        size = len(self._kept) + len(part)
        more = size - FREE_BYTES - self._held
        if size > self._limit or (more > 0 and not self._hold.take(more)):
            self._crowded = size <= self._limit
            self._hold.count(-self._held)
            self._kept, self._held = None, 0
            return
        if more > 0:
            self._held += more
        self._kept += part

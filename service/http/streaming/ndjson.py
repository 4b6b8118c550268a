"""Newline-delimited JSON: lines out of bytes that come in pieces of any size."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """A line that is not blank, by its number from 1; `content` is None where it was too long."""

    number: int
    content: bytes | None


async def read_lines(chunks: AsyncIterator[bytes], *, limit: int) -> AsyncIterator[Line]:
    """The lines of a stream, of which never more than one chunk and `limit` bytes are kept.

    Blank lines are left out but counted, as is a byte order mark in front of the first one. Where
    `chunks` raises, the line that it cut is not given.
    """
    splitter = _Splitter(limit)
    async for chunk in chunks:
        for line in splitter.feed(chunk):
            yield line
    for line in splitter.finish():
        yield line


class _Splitter:
    """Keeps the line that the last chunk cut."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._number = 0
        self._kept: bytearray | None = bytearray()  # None while the rest of a long line is skipped

    def feed(self, chunk: bytes) -> Iterator[Line]:
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            self._keep(end)
            yield from self.finish()
        self._keep(rest)

    def finish(self) -> Iterator[Line]:
        """The line that ends here, unless it is blank."""
        kept, self._kept = self._kept, bytearray()
        self._number += 1
        if kept is None:
            yield Line(number=self._number, content=None)
            return
        content = bytes(kept.removeprefix(_BOM) if self._number == 1 else kept)
        if content.strip(b" \t\r"):
            yield Line(number=self._number, content=content)

    def _keep(self, part: bytes) -> None:
        if self._kept is None:
            return
        if len(self._kept) + len(part) > self._limit:
            self._kept = None
        else:
            self._kept += part
